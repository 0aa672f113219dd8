// AnswerShape: what a request says its answer must look like, in the words of OpenAI and of vLLM.
#pragma once

#include <optional>
#include <string>

#include "server/json_fields.h"

namespace longspan::server {

struct AnswerShape {
  enum class Kind : uint8_t {
    kSchema,  // value: the JSON schema of the answer
    kRegex,   // value: a regular expression that the whole answer matches
    kChoice,  // value: an array of texts, of which the answer is one
  };
  Kind kind = Kind::kSchema;
  Json value;
  std::string field;  // that asked for it, for errors
};

// response_format: {type: text | json_object | json_schema, json_schema: {schema}};
// guided_json, guided_regex (or regex), guided_choice;
// structured_outputs: an object with one of json, json_object, regex and choice.
// None: any text. Throws WireError naming the field, also for two shapes at once.
std::optional<AnswerShape> parse_answer_shape(const JsonFields& fields);

}  // namespace longspan::server
