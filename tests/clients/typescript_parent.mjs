// A parent in TypeScript's SDK: it makes the calls that it reads, one a line, and prints each answer on a line.
// node typescript_parent.mjs MODULE URL TOKEN ERA

import { createInterface } from "node:readline";

const [module, url, token, era] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await import(module);
const negotiation = era === "modern" ? { versionNegotiation: { mode: "auto" } } : {};
const client = new Client({ name: "typescript", version: "1" }, { capabilities: {}, ...negotiation });
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));

for await (const line of createInterface({ input: process.stdin })) {
  const result = await client.callTool(JSON.parse(line));
  if (result.isError) throw new Error(JSON.stringify(result.content));
  console.log(JSON.stringify(result.structuredContent));
}
await client.close();
