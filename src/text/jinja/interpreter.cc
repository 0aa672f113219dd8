#include "text/jinja/interpreter.h"

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

namespace longspan::text::jinja {
namespace {

const Text kLoop = Text::of_static("loop");
const Text kCaller = Text::of_static("caller");
const Text kVarargs = Text::of_static("varargs");
const Text kKwargs = Text::of_static("kwargs");

[[noreturn]] void undefined_error(const Undefined& missing) {
  fail(ErrorKind::kInvalid, "'{}' is undefined", missing.name.view());
}

std::optional<Value> loop_field(const Loop& loop, std::string_view name) {
  const int64_t index = static_cast<int64_t>(loop.index);
  const int64_t size = std::ssize(loop.items);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined(Text::of_static(name));
  if (name == "nextitem")
    return index + 1 < size ? loop.items[loop.index + 1] : Value::undefined(Text::of_static(name));
  return std::nullopt;
}

}  // namespace

Value* Scope::find(std::string_view name) {
  for (auto& [known, value] : variables)
    if (known == name) return &value;
  return parent ? parent->find(name) : nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables)
    if (known == name) {
      old = std::move(value);
      return;
    }
  variables.emplace_back(name, std::move(value));
}

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : owner_(interpreter) {
    const int limit = owner_.budget_.limits().max_depth;
    if (++owner_.depth_ > limit) {
      --owner_.depth_;
      fail(ErrorKind::kInvalid, "nested deeper than max_depth = {} at run time", limit);
    }
  }
  ~DepthGuard() { --owner_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& owner_;
};

// A new scope below `parent` while this object lives.
class Interpreter::InnerScope {
 public:
  InnerScope(Interpreter& interpreter, std::shared_ptr<Scope> parent)
      : owner_(interpreter), outer_(owner_.scope_) {
    owner_.scope_ = std::make_shared<Scope>();
    owner_.scope_->parent = std::move(parent);
  }
  explicit InnerScope(Interpreter& interpreter) : InnerScope(interpreter, interpreter.scope_) {}
  ~InnerScope() { owner_.scope_ = std::move(outer_); }
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

 private:
  Interpreter& owner_;
  std::shared_ptr<Scope> outer_;
};

Interpreter::Interpreter(const Dict& context, const RenderOptions& options)
    : context_(context), options_(options), budget_(options.limits), scope_(std::make_shared<Scope>()) {}

Interpreter::~Interpreter() {
  // A namespace can hold itself, directly or through lists; so can what a loop has seen.
  for (const LoopPtr& loop : remembering_loops_) loop->last_seen.reset();
  for (const NamespacePtr& fields : namespaces_) fields->fields.clear();
}

std::string Interpreter::render(const Body& body) {
  std::string text;
  out_ = &text;
  run(body);
  return text;
}

// ---- Statements ----

Interpreter::Flow Interpreter::run(const Body& body) {
  const DepthGuard guard(*this);
  const int outer_line = line_;
  for (const Statement& statement : body) {
    line_ = statement.line;
    budget_.step();
    const Flow flow = std::visit([this](const auto& node) { return run(node); }, statement.node);
    if (flow != Flow::kNext) return flow;
  }
  line_ = outer_line;
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Data& data) {
  write(data.text.view());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Print& print) {
  write(as_shared_text(evaluate(*print.value), budget_).view());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const If& branch) {
  for (const auto& [test, body] : branch.branches)
    if (evaluate(*test).truthy()) return run(body);
  return run(branch.otherwise);
}

// The condition of `for x in y if condition` sees the loop variables but no `loop`.
std::vector<Value> Interpreter::loop_items(const For& loop, const Value& iterable) {
  std::vector<Value> items = iterate(iterable, budget_);
  if (!loop.condition) return items;
  std::vector<Value> kept;
  for (Value& candidate : items) {
    const InnerScope scope(*this);
    assign(loop.target, candidate);
    if (evaluate(*loop.condition).truthy()) kept.push_back(std::move(candidate));
  }
  return kept;
}

Interpreter::Flow Interpreter::run(const For& loop) {
  run_loop(loop, evaluate(*loop.iterable), /*depth0=*/0);
  return Flow::kNext;
}

void Interpreter::run_loop(const For& loop, const Value& iterable, int64_t depth0) {
  const auto state = std::make_shared<Loop>();
  state->items = loop_items(loop, iterable);
  state->depth0 = depth0;
  if (loop.recursive)
    state->recurse = [&loop, depth0, home = std::weak_ptr<Scope>(scope_)](Interpreter& self,
                                                                          const Args& args) {
      const std::shared_ptr<Scope> scope = home.lock();
      if (!scope || args.positional.size() != 1 || !args.named.empty())
        fail(ErrorKind::kInvalid, "loop(...) takes the items of one more loop, within its own");
      return self.captured(scope, [&] { self.run_loop(loop, args[0], depth0 + 1); });
    };
  // As in Jinja: `else` is for a loop of which no turn came to its end, also where each met a `continue`.
  bool completed_any = false;
  for (; state->index < state->items.size(); ++state->index) {
    budget_.step();
    const InnerScope scope(*this);
    scope_->set(kLoop.view(), Value(state));
    assign(loop.target, state->items[state->index]);
    const Flow flow = run(loop.body);
    if (flow == Flow::kBreak) break;
    completed_any = completed_any || flow == Flow::kNext;
  }
  if (completed_any) return;
  const InnerScope scope(*this);
  run(loop.otherwise);
}

Interpreter::Flow Interpreter::run(const Set& assignment) {
  assign(assignment.target, evaluate(*assignment.value));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const SetBlock& assignment) {
  Value text(capture(assignment.body));
  if (assignment.filter) {
    const Value* outer = std::exchange(filter_input_, &text);
    Value filtered = evaluate(*assignment.filter);
    filter_input_ = outer;
    text = std::move(filtered);
  }
  assign(assignment.target, std::move(text));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Macro& macro) {
  scope_->set(macro.name.view(), make_macro(macro));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const CallBlock& block) {
  const Call& node = std::get<Call>(block.call->node);
  const Value callee = evaluate(*node.callee);
  Args args = evaluate(node.args);
  args.named.emplace_back(kCaller.view(), make_macro(block.caller));
  write(as_shared_text(call(callee, args), budget_).view());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const FilterBlock& block) {
  const Value text(capture(block.body));
  const Value* outer = std::exchange(filter_input_, &text);
  write(as_shared_text(evaluate(*block.filter), budget_).view());
  filter_input_ = outer;
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const With& with) {
  std::vector<Value> values;  // all are evaluated outside of the new scope
  for (const auto& [target, value] : with.bindings) values.push_back(evaluate(*value));
  const InnerScope scope(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(with.bindings[i].first, std::move(values[i]));
  return run(with.body);
}

void Interpreter::write(std::string_view text) {
  const size_t limit = budget_.limits().max_output_bytes;
  if (text.size() > limit - out_->size())
    fail(ErrorKind::kInvalid, "too much output: more than max_output_bytes = {} bytes", limit);
  out_->append(text);
}

std::string Interpreter::capture(const Body& body) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  {
    const InnerScope scope(*this);
    run(body);
  }
  out_ = outer;
  budget_.build(text.size());
  return text;
}

void Interpreter::assign(const Target& target, Value value) {
  if (!target.items.empty()) {
    std::vector<Value> parts = iterate(value, budget_);
    if (parts.size() != target.items.size())
      fail(ErrorKind::kInvalid, "cannot unpack {} values into {} names", parts.size(), target.items.size());
    for (size_t i = 0; i < parts.size(); ++i) assign(target.items[i], std::move(parts[i]));
  } else if (target.attribute.view().empty()) {
    scope_->set(target.name.view(), std::move(value));
  } else {
    const Value object = lookup(target.name);
    const NamespacePtr* fields = object.get_if<NamespacePtr>();
    if (!fields)
      fail(ErrorKind::kInvalid, "cannot set '{}.{}': '{}' is not a namespace", target.name.view(),
           target.attribute.view(), target.name.view());
    (*fields)->set(target.attribute, std::move(value));
  }
}

// ---- Macros and calls ----

Value Interpreter::make_macro(const Macro& macro) {
  // Weak: a scope that holds its own macro must not keep itself alive.
  auto body = [&macro, home = std::weak_ptr<Scope>(scope_)](Interpreter& self, const Args& args) {
    const std::shared_ptr<Scope> scope = home.lock();
    if (!scope) fail(ErrorKind::kInvalid, "macro '{}' is called after its block ended", macro.name.view());
    return self.call_macro(macro, scope, args);
  };
  return Value(std::make_shared<const Function>(Function{macro.name, std::move(body)}));
}

Value Interpreter::call_macro(const Macro& macro, const std::shared_ptr<Scope>& scope, const Args& args) {
  return captured(scope, [&] {
    bind_parameters(macro, args);
    run(macro.body);
  });
}

template <class Print>
Value Interpreter::captured(const std::shared_ptr<Scope>& scope, Print&& print) {
  const DepthGuard guard(*this);
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  {
    const InnerScope inner(*this, scope);
    print();
  }
  out_ = outer;
  budget_.build(text.size());
  return Value(std::move(text));
}

void Interpreter::bind_parameters(const Macro& macro, const Args& args) {
  const auto& parameters = macro.parameters;
  if (args.positional.size() > parameters.size() && !macro.uses.varargs)
    fail(ErrorKind::kInvalid, "macro '{}' takes {} arguments, got {}", macro.name.view(), parameters.size(),
         args.positional.size());
  if (macro.uses.varargs) {
    const size_t num_bound = std::min(parameters.size(), args.positional.size());
    scope_->set(
        kVarargs.view(),
        Value::list({args.positional.begin() + static_cast<std::ptrdiff_t>(num_bound), args.positional.end()},
                    List::Kind::kTuple));
  }
  if (macro.uses.caller) scope_->set(kCaller.view(), Value::undefined(kCaller));
  std::vector<Dict::Entry> others;
  for (const auto& [name, value] : args.named) {
    const auto same = [&, wanted = name](const auto& parameter) { return parameter.first.view() == wanted; };
    const auto at = std::find_if(parameters.begin(), parameters.end(), same);
    const bool is_parameter = at != parameters.end();
    const bool is_taken = is_parameter && at - parameters.begin() < std::ssize(args.positional);
    if ((is_parameter && !is_taken) || (macro.uses.caller && name == kCaller.view()))
      scope_->set(name, value);
    else if (macro.uses.kwargs)
      others.emplace_back(Value(std::string(name)), value);
    else if (is_taken)
      fail(ErrorKind::kInvalid, "macro '{}' got parameter '{}' twice", macro.name.view(), name);
    else
      fail(ErrorKind::kInvalid, "macro '{}' has no parameter '{}'", macro.name.view(), name);
  }
  if (macro.uses.kwargs) scope_->set(kKwargs.view(), Value::dict(std::move(others)));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, fallback] = parameters[i];
    const auto given =
        std::find_if(args.named.begin(), args.named.end(),
                     [&, wanted = name.view()](const auto& arg) { return arg.first == wanted; });
    if (i < args.positional.size()) {
      scope_->set(name.view(), args.positional[i]);
    } else if (given == args.named.end()) {
      scope_->set(name.view(), fallback ? evaluate(*fallback) : Value::undefined(name));
    }
  }
}

Value Interpreter::call(const Value& callee, const Args& args) {
  if (const Undefined* missing = callee.get_if<Undefined>()) undefined_error(*missing);
  if (const LoopPtr* loop = callee.get_if<LoopPtr>(); loop && (*loop)->recurse)
    return (*loop)->recurse(*this, args);
  const FunctionPtr* function = callee.get_if<FunctionPtr>();
  if (!function) fail(ErrorKind::kInvalid, "a value of type '{}' cannot be called", callee.type_name());
  return (*function)->call(*this, args);
}

Value Interpreter::call_builtin(const Builtin& builtin, std::string_view kind, const Value& self, Args args) {
  budget_.step();
  try {
    return builtin.call(*this, self, bind(builtin, kind, std::move(args)));
  } catch (const RaisedException&) {
    throw;
  } catch (const Error& error) {
    fail(error.kind, "{} '{}': {}", kind, builtin.name, error.what());
  }
}

Value Interpreter::filter(std::string_view name, const Value& input, Args args) {
  const Builtin* builtin = find_filter(name);
  if (!builtin) fail(ErrorKind::kInvalid, "unknown filter '{}'", name);
  return call_builtin(*builtin, "filter", input, std::move(args));
}

bool Interpreter::test(std::string_view name, const Value& input, Args args) {
  const Builtin* builtin = find_test(name);
  if (!builtin) fail(ErrorKind::kInvalid, "unknown test '{}'", name);
  return call_builtin(*builtin, "test", input, std::move(args)).truthy();
}

Value Interpreter::new_namespace(std::vector<std::pair<Text, Value>> fields) {
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(fields)}));
  return Value(namespaces_.back());
}

// ---- Names, attributes, items ----

Value Interpreter::lookup(const Text& name) {
  if (const Value* found = scope_->find(name.view())) return *found;
  if (const Value* found = context_.find(name.view())) return *found;
  const Builtin* builtin = find_global(name.view());
  if (!builtin) return Value::undefined(name);
  auto call = [builtin](Interpreter& self, const Args& args) {
    return self.call_builtin(*builtin, "function", Value(), args);
  };
  return Value(std::make_shared<const Function>(Function{name, std::move(call)}));
}

std::optional<Value> Interpreter::field(const Value& object, const Text& name) {
  if (const Undefined* missing = object.get_if<Undefined>()) undefined_error(*missing);
  if (const NamespacePtr* fields = object.get_if<NamespacePtr>()) {
    const Value* found = (*fields)->find(name.view());
    return found ? std::optional(*found) : std::nullopt;
  }
  if (const LoopPtr* loop = object.get_if<LoopPtr>())
    if (auto found = loop_field(**loop, name.view())) return found;
  if (const FunctionPtr* function = object.get_if<FunctionPtr>())
    return name.view() == "name" ? std::optional<Value>((*function)->name) : std::nullopt;
  if (const List* list = object.as_list(); list && list->is_group) {
    if (name.view() == "grouper") return list->items[0];
    if (name.view() == "list") return list->items[1];
  }
  if (const Builtin* method = find_method(object, name.view())) {
    auto call = [method, object](Interpreter& self, const Args& args) {
      return self.call_builtin(*method, "method", object, args);
    };
    return Value(std::make_shared<const Function>(Function{name, std::move(call)}));
  }
  if (is_mutating_method(object, name.view())) return Value::undefined(name);
  return std::nullopt;
}

// Python's attributes win over dict keys: `m.items` is the method, `m['items']` the entry.
Value Interpreter::attribute(const Value& object, const Text& name) {
  if (auto found = field(object, name)) return *std::move(found);
  auto found = find_item(object, Value(name));
  return found ? *std::move(found) : Value::undefined(name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (const Undefined* missing = object.get_if<Undefined>()) undefined_error(*missing);
  if (auto found = find_item(object, key)) return *std::move(found);
  const Text* name = key.as_text();
  if (!name) return Value::undefined(as_shared_text(key, budget_));
  auto found = field(object, *name);
  return found ? *std::move(found) : Value::undefined(*name);
}

// ---- Expressions ----

Value Interpreter::evaluate(const Expr& expr) {
  const DepthGuard guard(*this);
  budget_.step();
  const int outer_line = std::exchange(line_, expr.line);
  Value value = std::visit([this](const auto& node) { return evaluate(node); }, expr.node);
  line_ = outer_line;  // not on errors: the line of the failing expression stays
  return value;
}

Value Interpreter::evaluate(const Literal& literal) { return literal.value; }

Value Interpreter::evaluate(const Name& name) { return lookup(name.name); }

Value Interpreter::evaluate(const ListDisplay& list) {
  std::vector<Value> items;
  items.reserve(list.items.size());
  for (const ExprPtr& item : list.items) items.push_back(evaluate(*item));
  return Value::list(std::move(items), list.is_tuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Interpreter::evaluate(const DictDisplay& dict) {
  std::vector<Dict::Entry> entries;
  entries.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    Value name = evaluate(*key);
    const List* list = name.as_list();
    if (name.as_dict() || (list && list->kind == List::Kind::kList))
      fail(ErrorKind::kInvalid, "a value of type '{}' cannot be a dict key", name.type_name());
    entries.emplace_back(std::move(name), evaluate(*value));
  }
  return Value::dict(std::move(entries));
}

Value Interpreter::evaluate(const Attribute& node) { return attribute(evaluate(*node.object), node.name); }

Value Interpreter::evaluate(const Item& node) {
  const Value object = evaluate(*node.object);
  return item(object, evaluate(*node.key));
}

Value Interpreter::evaluate(const Slice& node) {
  const Value object = evaluate(*node.object);
  if (const Undefined* missing = object.get_if<Undefined>()) undefined_error(*missing);
  const auto bound = [this](const ExprPtr& expr) { return expr ? evaluate(*expr) : Value(None{}); };
  const Value start = bound(node.start);
  const Value stop = bound(node.stop);
  return slice(object, start, stop, bound(node.step), budget_);
}

Value Interpreter::evaluate(const Unary& unary) { return apply(unary.op, evaluate(*unary.operand)); }

Value Interpreter::evaluate(const Binary& binary) {
  Value left = evaluate(*binary.left);
  if (binary.op == BinaryOp::kAnd) return left.truthy() ? evaluate(*binary.right) : left;
  if (binary.op == BinaryOp::kOr) return left.truthy() ? left : evaluate(*binary.right);
  return apply(binary.op, left, evaluate(*binary.right), budget_);
}

Value Interpreter::evaluate(const Comparison& comparison) {
  Value left = evaluate(*comparison.first);
  for (const auto& [op, operand] : comparison.rest) {
    Value right = evaluate(*operand);
    if (!apply(op, left, right, budget_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate(const Conditional& conditional) {
  if (evaluate(*conditional.test).truthy()) return evaluate(*conditional.then);
  return conditional.otherwise ? evaluate(*conditional.otherwise) : Value();
}

Value Interpreter::evaluate(const Call& node) {
  const Value callee = evaluate(*node.callee);
  return call(callee, evaluate(node.args));
}

Value Interpreter::evaluate(const Filter& node) {
  const Value input = node.input ? evaluate(*node.input) : *filter_input_;
  return filter(node.name.view(), input, evaluate(node.args));
}

Value Interpreter::evaluate(const Test& node) {
  const Value input = evaluate(*node.input);
  return test(node.name.view(), input, evaluate(node.args)) != node.negated;
}

Args Interpreter::evaluate(const CallArgs& node) {
  Args args;
  args.positional.reserve(node.positional.size());
  for (const ExprPtr& arg : node.positional) args.positional.push_back(evaluate(*arg));
  for (const auto& [name, arg] : node.named) args.named.emplace_back(name.view(), evaluate(*arg));
  return args;
}

}  // namespace longspan::text::jinja
