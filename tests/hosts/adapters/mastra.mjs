// Mastra.
import { MCPClient } from "@mastra/mcp";

export async function connect(server, timeout) {
  const options = timeout === null ? {} : { timeout: timeout * 1000 };
  const client = new MCPClient({ servers: { s: server }, ...options });
  const found = Object.entries(await client.listTools()); // it puts the name of the server before each
  const tools = Object.fromEntries(found.map(([name, tool]) => [name.replace(/^s[_.-]/, ""), tool]));
  return { names: Object.keys(tools), call: (name, args) => tools[name].execute(args, {}) };
}
