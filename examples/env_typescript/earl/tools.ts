/** Tools that an agent calls by an action, and how models of the Hermes form write such a call in text. */

import type { Action, Context, Promising, ToolCall, ToolResult } from "./environment.ts";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";
const THOUGHT = "</think>";
const MARK = /<tool_call>|<think>|<\/think>/g;
const CALL_MARK = /<tool_call>|<\/tool_call>/g;
const MAX_CALLS = 16;

export interface Tool {
  name: string;
  description: string;
  /** JSON schema of the arguments, an object. `run` checks what it is given: a model wrote it. */
  parameters: Record<string, unknown>;
  /** Throws ToolError for the agent's mistake; any other exception ends the episode. */
  run(given: Record<string, unknown>, context: Context): Promising<string>;
}

/** The description of a tool for a chat model. */
export type ToolSchema = Omit<Tool, "run">;

/** The agent's mistake: it reads the message as the tool's answer, and the episode continues. */
export class ToolError extends Error {}

/** A call, or the fault of a text that should have been a call. */
type Call = ToolCall | { id: string; fault: string };

/** The schemas of tools; empty if there are none. */
export function toolsJson(tools: ToolSchema[]): string {
  return tools.length === 0 ? "" : JSON.stringify(tools.map(schemaOf));
}

function schemaOf({ name, description, parameters }: ToolSchema) {
  return { type: "function", function: { name, description, parameters } };
}

/** The tools and how to call them, for the first observation. */
export function explain(tools: ToolSchema[]): string {
  const schemas = tools.map((tool) => JSON.stringify(schemaOf(tool))).join("\n");
  return (
    `You may call these functions:\n<tools>\n${schemas}\n</tools>\n` +
    `To call one, answer with its name and arguments as JSON:\n` +
    `${OPEN}{"name": <function-name>, "arguments": <args-json-object>}${CLOSE}`
  );
}

/** The text of a call, as an agent would write it. */
export function render(name: string, given: Record<string, unknown>): string {
  return `${OPEN}${JSON.stringify({ name, arguments: given })}${CLOSE}`;
}

/**
 * Run an action's calls one after the other: those that its client parsed, or those in its text. The
 * agent's mistakes are in the results. Empty if the action calls nothing.
 */
export async function runCalls(action: Action, tools: Tool[], context: Context): Promise<ToolResult[]> {
  const results: ToolResult[] = [];
  for (const call of callsIn(action, context.maxActionCharacters)) {
    try {
      if ("fault" in call) throw new ToolError(call.fault);
      const tool = tools.find(({ name }) => name === call.name);
      if (!tool) throw new ToolError(`no such tool; there is ${tools.map(({ name }) => name).join(", ")}`);
      const text = await tool.run(argumentsOf(call.argumentsJson), context);
      results.push({ id: call.id, text, isError: false });
    } catch (error) {
      if (!(error instanceof ToolError)) throw error;
      results.push({ id: call.id, text: `error: ${error.message}`, isError: true });
    }
  }
  return results;
}

function callsIn({ text, toolCalls }: Action, maxCharacters: number): Call[] {
  const calls = toolCalls.length > 0 ? toolCalls : written(text, maxCharacters);
  return calls.length <= MAX_CALLS ? calls : [{ id: "", fault: `more than ${MAX_CALLS} calls` }];
}

/** The calls between the marks of a text, without those that the agent only thinks of. */
function written(text: string, maxCharacters: number): Call[] {
  if (!text.includes(OPEN)) return [];
  if (text.length > maxCharacters) return [{ id: "", fault: `more than ${maxCharacters} characters` }];
  const pieces = spoken(text).split(OPEN).slice(1);
  return pieces.map((piece, index) => {
    const [body = "", ...after] = piece.split(CLOSE);
    const id = `${index}`;
    return after.length > 0 ? parsed(body, id) : { id, fault: `${OPEN} without ${CLOSE}` };
  });
}

/**
 * The text without the agent's thinking: from <think> to the first </think> after it, or to the end if there
 * is none. A </think> alone ends thinking that began in the prompt. The body of a whole call is data.
 */
function spoken(text: string): string {
  const spans: string[] = [];
  let start = 0;
  let position = 0;
  for (;;) {
    MARK.lastIndex = position;
    const mark = MARK.exec(text);
    if (!mark) return [...spans, text.slice(start)].join("\n");
    position = MARK.lastIndex;
    if (mark[0] === OPEN) {
      CALL_MARK.lastIndex = position;
      if (CALL_MARK.exec(text)?.[0] === CLOSE) position = CALL_MARK.lastIndex;
    } else if (mark[0] === THOUGHT) {
      spans.length = 0;
      start = position;
    } else {
      spans.push(text.slice(start, mark.index));
      const thought = text.indexOf(THOUGHT, position);
      if (thought < 0) return spans.join("\n");
      start = position = thought + THOUGHT.length;
    }
  }
}

function parsed(body: string, id: string): Call {
  try {
    const call = JSON.parse(body) as { name?: unknown; arguments?: unknown };
    return { id, name: String(call.name), argumentsJson: JSON.stringify(call.arguments ?? null) };
  } catch {
    return { id, fault: 'a call is {"name": ..., "arguments": {...}}' };
  }
}

function argumentsOf(json: string): Record<string, unknown> {
  let given: unknown;
  try {
    given = JSON.parse(json || "{}");
  } catch {
    throw new ToolError("the arguments are no JSON");
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new ToolError("the arguments are no object");
  }
  return given as Record<string, unknown>;
}
