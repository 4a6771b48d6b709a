// The Agents SDK of OpenAI for JavaScript.
import { MCPServerStdio } from "@openai/agents";

export async function connect(server, timeout) {
  const options = timeout === null ? {} : { timeout: timeout * 1000, clientSessionTimeoutSeconds: timeout };
  const mcp = new MCPServerStdio({ ...server, ...options });
  await mcp.connect();
  const names = (await mcp.listTools()).map((tool) => tool.name);
  return { names, call: (name, args) => mcp.callTool(name, args) };
}
