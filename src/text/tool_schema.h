// ToolSchema: the types of tool parameters. Models write parameter values as bare text; the JSON schema of
// the tool says what the text means.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

namespace longspan::text {

struct ParameterType {
  std::string name = "string";  // a type of JSON Schema; but never "null"
  bool nullable = false;
};
// The type as which a parameter's text is read: the first one that is not null, of `type` (a name or a list)
// or of anyOf and oneOf, one level deep; else what properties, items, enum or const say. Names of other
// languages (int*, float, dict, ...) count as those of JSON Schema; an unknown one as string.
ParameterType parameter_type(const nlohmann::ordered_json& schema);

// Immutable; may be shared by threads.
class ToolSchema final {
 public:
  // `tools`: the array of a chat request, [{type: function, function: {name, parameters}}] or without the
  // envelope. Entries of another form are ignored: the server has checked them.
  explicit ToolSchema(const nlohmann::ordered_json& tools);

  bool has_tool(std::string_view tool) const { return parameters_.contains(std::string(tool)); }
  // True for a tool that is not known, or whose parameters are not listed.
  bool may_have_parameter(std::string_view tool, std::string_view parameter) const;

  // The value that the text stands for. Never fails: what does not fit its type stays a string.
  //   string -> the text                     integer
  //   boolean -> is it "true", in any case   number, whole ones as integers
  //   null and None, if the type allows null -> null
  //   object, array -> JSON, else a Python literal
  nlohmann::ordered_json value(std::string_view tool, std::string_view parameter,
                               std::string_view text) const;

 private:
  std::unordered_map<std::string, nlohmann::ordered_json>
      parameters_;  // properties by tool, without references; null: not listed
};

}  // namespace longspan::text
