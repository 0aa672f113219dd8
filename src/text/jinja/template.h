// A parsed template: what the rest of the text room uses of the engine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"

namespace longspan::text::jinja {

// Immutable; render() may run on many threads at once.
//
// The environment is that of chat templates: trim_blocks and lstrip_blocks on, no auto-escaping, break and
// continue, tojson without HTML escapes, lists and dicts that cannot be changed, raise_exception and
// strftime_now. Not there: extends, include, import, block, * and ** arguments.
class Template {
 public:
  // Throws Error kInvalid "NAME line N: what is wrong".
  Template(std::string name, std::string_view source);

  // Renders with the members of the object `context` as variables. Throws RaisedException with the template's
  // own text when it calls raise_exception, and Error kInvalid "NAME line N: ..." for everything else.
  std::string render(const nlohmann::ordered_json& context, const RenderOptions& options = {}) const;
  std::string render(const Dict& context, const RenderOptions& options = {}) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Text source_;
  Body body_;
};

}  // namespace longspan::text::jinja
