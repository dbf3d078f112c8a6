"""Serve tools to agents, with short descriptions and one-line refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, Tool
from pydantic import ValidationError

from claim2source.core.errors import did_you_mean
from claim2source.core.terminal import printable_line, shortened
from claim2source.serve.schemas import first_problem

# Keys that an agent need not read: the server checks values and reports errors.
_UNSAID = ("title", "pattern", "examples", "minLength", "$defs", "anyOf")
# Longer lists of values are described in words.
_VALUES = 8
# Most characters of a refusal.
_LINE = 300


class ToolServer(MCPServer):
    """Serve tools; wrong arguments are refused in one line, as in the API."""

    async def list_tools(self) -> list[Tool]:
        """List the tools with short schemas, because an agent reads them before every question."""
        tools = []
        for tool in await super().list_tools():
            schemas: dict[str, Any] = {"input_schema": arguments_schema(tool.input_schema)}
            if tool.output_schema is not None:
                schemas["output_schema"] = answer_schema(tool.output_schema)
            tools.append(tool.model_copy(update=schemas))
        return tools

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        context: Any = None,
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool by name. Raises `ToolError`."""
        for tool in await self.list_tools():
            known = tool.input_schema["properties"]
            strange = [key for key in arguments if key not in known]
            if tool.name == name and strange:
                near = did_you_mean(strange[0][:100], known)
                listed = ", ".join(known)
                raise _refusal(f"{strange[0][:100]}: is not known; {near}allowed: {listed}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                field, reason = first_problem(cause.errors(include_url=False))
                raise _refusal(f"{field}: {reason}") from None
            # The tool's own message, without the name of the tool in front.
            raise _refusal(str(cause if isinstance(cause, ToolError) else error)) from None


def _refusal(line: str) -> ToolError:
    return ToolError(shortened(printable_line(line), _LINE))


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the schema of a tool's arguments: each by its type, bounds and description.

    The alternatives null and "", which mean an absent argument, are omitted.
    """
    required = schema.get("required", [])
    properties: dict[str, Any] = {}
    for name, argument in schema["properties"].items():
        kinds = argument.get("anyOf", [argument])
        types = [kinds[0]["type"]]
        if name in required and {"type": "null"} in kinds:
            types.append("null")
        short = {"type": types[0] if len(types) == 1 else types}
        for key, value in {**kinds[0], **argument}.items():
            is_long = key == "enum" and len(value) > _VALUES
            is_nothing = key == "default" and value in (None, "")
            if key not in (*_UNSAID, "type") and not is_long and not is_nothing:
                short[key] = value
        properties[name] = short
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def answer_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the schema of a tool's answer: without titles, a nullable type in one word."""
    short: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" or key == "$defs":
            short[key] = {name: answer_schema(part) for name, part in value.items()}
        elif key == "anyOf" and all(list(kind) == ["type"] for kind in value):
            short["type"] = [kind["type"] for kind in value]
        elif key != "title" and isinstance(value, Mapping):
            short[key] = answer_schema(value)
        elif key != "title":
            short[key] = value
    return short
