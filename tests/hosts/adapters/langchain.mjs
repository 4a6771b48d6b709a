// LangChain's adapters for JavaScript.
import { MultiServerMCPClient } from "@langchain/mcp-adapters";

export async function connect(server, timeout) {
  const options = timeout === null ? {} : { defaultToolTimeout: timeout * 1000 };
  const client = new MultiServerMCPClient({ mcpServers: { s: { transport: "stdio", ...server, ...options } } });
  const tools = Object.fromEntries((await client.getTools()).map((tool) => [tool.name, tool]));
  return { names: Object.keys(tools), call: (name, args) => tools[name].invoke(args) };
}
