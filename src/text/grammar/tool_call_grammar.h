// The calls that ToolParser reads, as a grammar:
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>
#pragma once

#include <cstdint>
#include <string>

#include "text/grammar/json_schema.h"

namespace longspan::text {

enum class CallCount : uint8_t { kOne, kOneOrMore };

// Rules of calls of the tools. `tools`: the array of a chat request, in its envelopes {type, function: {name,
// parameters, strict}}; names are not empty. Parameters come in the order of the schema, optional ones may be
// left out, others than listed do not come. A value has the form that ToolSchema reads back as a value of its
// schema: strings bare, everything else as JSON. What a parameter's schema asks for beyond its type is obeyed
// where it can be; with `strict` it is refused where it cannot: throws like JsonSchemaRules::value.
NodeId tool_call_rule(GrammarBuilder& builder, const SchemaJson& tools, CallCount count);

// Any text without a call; or a text and then calls.
NodeId text_or_calls_rule(GrammarBuilder& builder, const SchemaJson& tools, CallCount count);

Grammar tool_call_grammar(const SchemaJson& tools, CallCount count);

}  // namespace longspan::text
