// The AI SDK.
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport } from "@ai-sdk/mcp/mcp-stdio";

export async function connect(server, timeout) {
  const client = await createMCPClient({ transport: new Experimental_StdioMCPTransport(server) });
  const tools = await client.tools();
  const options = { messages: [], toolCallId: "1" };
  return { names: Object.keys(tools), call: (name, args) => tools[name].execute(args, options) };
}
