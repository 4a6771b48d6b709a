// The MCP SDK for TypeScript, version 1.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

export async function connect(server, timeout) {
  const client = new Client({ name: "typescript", version: "1" });
  await client.connect(new StdioClientTransport(server));
  const names = (await client.listTools()).tools.map((tool) => tool.name);
  const options = timeout === null ? {} : { timeout: timeout * 1000 };
  return { names, call: (name, args) => client.callTool({ name, arguments: args }, undefined, options) };
}
