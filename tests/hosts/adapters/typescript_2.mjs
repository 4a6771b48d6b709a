// The client of the MCP SDK for TypeScript, version 2.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

export async function connect(server, timeout) {
  const client = new Client({ name: "typescript", version: "2" });
  await client.connect(new StdioClientTransport(server));
  const names = (await client.listTools()).tools.map((tool) => tool.name);
  const options = timeout === null ? {} : { timeout: timeout * 1000 };
  return { names, call: (name, args) => client.callTool({ name, arguments: args }, options) };
}
