#include "text/jinja/builtins.h"

#include <algorithm>

namespace longspan::text::jinja {
namespace {

struct Parameter {
  std::string_view name;
  bool optional;
};

std::vector<Parameter> parse_parameters(std::string_view spec) {
  std::vector<Parameter> parameters;
  while (!spec.empty()) {
    std::string_view word = spec.substr(0, spec.find(' '));
    spec.remove_prefix(std::min(spec.size(), word.size() + 1));
    const bool optional = word.ends_with('?');
    if (optional) word.remove_suffix(1);
    parameters.push_back({word, optional});
  }
  return parameters;
}

}  // namespace

Args bind(const Builtin& builtin, std::string_view kind, Args args) {
  if (builtin.parameters == "*") return args;
  const std::vector<Parameter> parameters = parse_parameters(builtin.parameters);
  if (args.positional.size() > parameters.size())
    fail(ErrorKind::kInvalid, "takes {} arguments, got {}", parameters.size(), args.positional.size());
  const size_t num_positional = args.positional.size();
  std::vector<bool> given(parameters.size());
  std::fill_n(given.begin(), num_positional, true);
  args.positional.resize(parameters.size());
  for (auto& [name, value] : args.named) {
    const auto same = [wanted = name](const Parameter& parameter) { return parameter.name == wanted; };
    const size_t at =
        static_cast<size_t>(std::find_if(parameters.begin(), parameters.end(), same) - parameters.begin());
    if (at == parameters.size()) fail(ErrorKind::kInvalid, "has no parameter '{}'", name);
    if (given[at]) fail(ErrorKind::kInvalid, "got parameter '{}' twice", name);
    given[at] = true;
    args.positional[at] = std::move(value);
  }
  args.named.clear();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!given[i] && !parameters[i].optional)
      fail(ErrorKind::kInvalid, "needs the argument '{}' of this {}", parameters[i].name, kind);
  return args;
}

}  // namespace longspan::text::jinja
