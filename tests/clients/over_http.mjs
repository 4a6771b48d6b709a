// A parent in TypeScript's SDK: starts a run, answers its question, gets its result, and prints what it saw.
// node over_http.mjs MODULE URL TOKEN ERA

const [module, url, token, era] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await import(module);

async function connected() {
  const negotiation = era === "modern" ? { versionNegotiation: { mode: "auto" } } : {};
  const client = new Client({ name: "typescript", version: "1" }, { capabilities: {}, ...negotiation });
  const headers = { Authorization: `Bearer ${token}` };
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return client;
}

async function call(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) throw new Error(JSON.stringify(result.content));
  return result.structuredContent;
}

const first = await connected();
const tools = (await first.listTools()).tools.map((tool) => tool.name);
const asked = await call(first, "run_painter", { prompt: "Paint it.", waitSeconds: 40 });
await first.close();

const second = await connected();
const [message] = asked.messages;
const replied = await call(second, "reply_subagent", {
  runId: asked.runId,
  messageId: message.messageId,
  answer: message.options[1],
  waitSeconds: 40,
});
const stopped = await call(second, "stop_run", { runId: asked.runId });
await second.close();
console.log(JSON.stringify({ tools, result: replied.updatedMetadata.result, stopped: stopped.status }));
