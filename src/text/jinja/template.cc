#include "text/jinja/template.h"

#include <nlohmann/json.hpp>

#include "text/jinja/json.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace longspan::text::jinja {

Template::Template(std::string name, std::string_view source)
    : name_(std::move(name)), source_(normalize_source(source)) {
  try {
    body_ = parse(source_);
  } catch (const Error& error) {
    fail(error.kind, "{} {}", name_, error.what());
  }
}

std::string Template::render(const nlohmann::ordered_json& context, const RenderOptions& options) const {
  const Value variables = from_json(context);
  if (!variables.as_dict()) fail(ErrorKind::kInvalid, "{}: the context must be an object", name_);
  return render(*variables.as_dict(), options);
}

std::string Template::render(const Dict& context, const RenderOptions& options) const {
  Interpreter interpreter(context, options);
  try {
    return interpreter.render(body_);
  } catch (const RaisedException&) {
    throw;
  } catch (const Error& error) {
    fail(error.kind, "{} line {}: {}", name_, interpreter.line(), error.what());
  }
}

}  // namespace longspan::text::jinja
