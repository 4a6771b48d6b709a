// Speaks for a host of npm as bridge.py does for one of PyPI. An adapter gives `connect(server, timeout)`, which
// gives the names of the tools and a function that calls one.

import { createInterface } from "node:readline";

const [adapter, order] = process.argv.slice(2);
const given = JSON.parse(order);
const { connect } = await import(adapter);
const out = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // hosts print
const tell = (facts) => out(JSON.stringify(facts) + "\n");
const words = (result) => (typeof result === "string" ? result : JSON.stringify(result));

const { names, call } = await connect({ command: given.command, args: given.args, env: given.env }, given.timeout);
tell({ names });
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error("bound")), asked.bound * 1000).unref());
  try {
    tell({ text: words(await Promise.race([call(asked.tool, asked.arguments), late])) });
  } catch (error) {
    tell({ raised: `${error.name}: ${error.message}` });
  }
}
process.exit(0);
