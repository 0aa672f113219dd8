// Runs a parsed template. One object renders once, on one thread.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"

namespace longspan::text::jinja {

struct Builtin;

struct RenderOptions {
  Limits limits;
  std::function<std::tm()> now;  // for strftime_now; none: the local time of this machine
};

// The template called raise_exception(text): the text is meant for the user and is passed on as it is.
class RaisedException final : public Error {
 public:
  explicit RaisedException(const std::string& text) : Error(ErrorKind::kInvalid, text) {}
};

// Variables of a loop turn, macro call or block; looked up from the inside out.
struct Scope {
  std::shared_ptr<Scope> parent;  // null at the top of the template
  std::vector<std::pair<std::string_view, Value>> variables;

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

class Interpreter {
 public:
  // `context` holds the variables of the caller and outlives the interpreter.
  Interpreter(const Dict& context, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Body& body);  // errors carry no line: see line()
  int line() const { return line_; }     // of the statement or expression that runs, or that failed

  // ---- For the builtins ----
  Budget& budget() { return budget_; }
  const RenderOptions& options() const { return options_; }
  Value call(const Value& callee, const Args& args);
  Value filter(std::string_view name, const Value& input, Args args);
  bool test(std::string_view name, const Value& input, Args args);
  Value attribute(const Value& object, const Text& name);  // object.name
  Value item(const Value& object, const Value& key);       // object[key]
  Value new_namespace(std::vector<std::pair<Text, Value>> fields);
  void clear_at_end(const LoopPtr& loop) { remembering_loops_.push_back(loop); }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class DepthGuard;
  class InnerScope;

  Flow run(const Body& body);
  Flow run(const Data& data);
  Flow run(const Print& print);
  Flow run(const If& branch);
  Flow run(const For& loop);
  Flow run(const Set& assignment);
  Flow run(const SetBlock& assignment);
  Flow run(const Macro& macro);
  Flow run(const CallBlock& block);
  Flow run(const FilterBlock& block);
  Flow run(const With& with);
  Flow run(const Break&) { return Flow::kBreak; }
  Flow run(const Continue&) { return Flow::kContinue; }

  Value evaluate(const Expr& expr);
  Value evaluate(const Literal& literal);
  Value evaluate(const Name& name);
  Value evaluate(const ListDisplay& list);
  Value evaluate(const DictDisplay& dict);
  Value evaluate(const Attribute& node);
  Value evaluate(const Item& node);
  Value evaluate(const Slice& node);
  Value evaluate(const Unary& unary);
  Value evaluate(const Binary& binary);
  Value evaluate(const Comparison& comparison);
  Value evaluate(const Conditional& conditional);
  Value evaluate(const Call& node);
  Value evaluate(const Filter& node);
  Value evaluate(const Test& node);
  Args evaluate(const CallArgs& node);

  Value lookup(const Text& name);
  std::optional<Value> field(const Value& object,
                             const Text& name);  // a method, or what the object itself has
  void write(std::string_view text);
  std::string capture(const Body& body);  // what the body prints, in a scope of its own
  void assign(const Target& target, Value value);
  std::vector<Value> loop_items(const For& loop, const Value& iterable);
  void run_loop(const For& loop, const Value& iterable, int64_t depth0);
  // What `print` writes, within `scope` or one that it makes.
  template <class Print>
  Value captured(const std::shared_ptr<Scope>& scope, Print&& print);
  Value make_macro(const Macro& macro);
  Value call_macro(const Macro& macro, const std::shared_ptr<Scope>& scope, const Args& args);
  void bind_parameters(const Macro& macro, const Args& args);
  Value call_builtin(const Builtin& builtin, std::string_view kind, const Value& self, Args args);

  const Dict& context_;
  const RenderOptions& options_;
  Budget budget_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  const Value* filter_input_ = nullptr;  // the text that a filter block gives to its filter
  std::vector<NamespacePtr> namespaces_;
  std::vector<LoopPtr> remembering_loops_;  // that loop.changed() was asked of
  int line_ = 0;
  int depth_ = 0;
};

}  // namespace longspan::text::jinja
