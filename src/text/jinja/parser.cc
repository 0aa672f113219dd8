#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "text/jinja/lexer.h"

namespace longspan::text::jinja {
namespace {

using Kind = Token::Kind;

int depth_of(const ExprPtr& expr) { return expr ? expr->depth : 0; }

int depth_of(const CallArgs& args) {
  int depth = 0;
  for (const ExprPtr& arg : args.positional) depth = std::max(depth, depth_of(arg));
  for (const auto& arg : args.named) depth = std::max(depth, depth_of(arg.second));
  return depth;
}

// Deepest child of a node.
struct ChildDepth {
  int operator()(const Literal&) const { return 0; }
  int operator()(const Name&) const { return 0; }
  int operator()(const ListDisplay& n) const {
    int depth = 0;
    for (const ExprPtr& item : n.items) depth = std::max(depth, depth_of(item));
    return depth;
  }
  int operator()(const DictDisplay& n) const {
    int depth = 0;
    for (const auto& [key, value] : n.entries) depth = std::max({depth, depth_of(key), depth_of(value)});
    return depth;
  }
  int operator()(const Attribute& n) const { return depth_of(n.object); }
  int operator()(const Item& n) const { return std::max(depth_of(n.object), depth_of(n.key)); }
  int operator()(const Slice& n) const {
    return std::max({depth_of(n.object), depth_of(n.start), depth_of(n.stop), depth_of(n.step)});
  }
  int operator()(const Unary& n) const { return depth_of(n.operand); }
  int operator()(const Binary& n) const { return std::max(depth_of(n.left), depth_of(n.right)); }
  int operator()(const Comparison& n) const {
    int depth = depth_of(n.first);
    for (const auto& [op, operand] : n.rest) depth = std::max(depth, depth_of(operand));
    return depth;
  }
  int operator()(const Conditional& n) const {
    return std::max({depth_of(n.test), depth_of(n.then), depth_of(n.otherwise)});
  }
  int operator()(const Call& n) const { return std::max(depth_of(n.callee), depth_of(n.args)); }
  int operator()(const Filter& n) const { return std::max(depth_of(n.input), depth_of(n.args)); }
  int operator()(const Test& n) const { return std::max(depth_of(n.input), depth_of(n.args)); }
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body body = parse_body({});
    if (current().kind != Kind::kEnd) error("unexpected '{}'", spelling(current()));
    return body;
  }

 private:
  // ---- Tokens ----
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  int line() const { return current().line; }

  template <class... A>
  [[noreturn]] void error(fmt::format_string<A...> format, A&&... args) const {
    fail(ErrorKind::kInvalid, "line {}: {}", line(), fmt::format(format, std::forward<A>(args)...));
  }

  static std::string_view spelling(const Token& token) {
    switch (token.kind) {
      case Kind::kPrintBegin:
        return "{{";
      case Kind::kPrintEnd:
        return "}}";
      case Kind::kBlockBegin:
        return "{%";
      case Kind::kBlockEnd:
        return "%}";
      case Kind::kEnd:
        return "end of template";
      default:
        return token.text.view();
    }
  }

  bool skip_operator(std::string_view op) {
    const bool found = current().is_operator(op);
    if (found) take();
    return found;
  }
  bool skip_name(std::string_view name) {
    const bool found = current().is_name(name);
    if (found) take();
    return found;
  }
  void expect(Kind kind, std::string_view what) {
    if (current().kind != kind) error("expected {}, got '{}'", what, spelling(current()));
    take();
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) error("expected '{}', got '{}'", op, spelling(current()));
  }
  Text expect_name(std::string_view what) {
    if (current().kind != Kind::kName) error("expected {}, got '{}'", what, spelling(current()));
    return take().text;
  }

  struct NestingGuard {
    explicit NestingGuard(Parser& parser) : owner(parser) {
      if (++owner.nesting_ > kMaxNesting) owner.error("nested deeper than {} levels", kMaxNesting);
    }
    ~NestingGuard() { --owner.nesting_; }
    Parser& owner;
  };

  ExprPtr make(int at_line, Expr::Node node) const {
    const int depth = 1 + std::visit(ChildDepth{}, node);
    if (depth > kMaxExprDepth) error("expression deeper than {} levels", kMaxExprDepth);
    return std::make_unique<Expr>(Expr{at_line, depth, std::move(node)});
  }

  // ---- Statements ----

  // Statements up to one of the tags in `ends`, whose name is then the current token; up to the end without
  // ends.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const NestingGuard guard(*this);
    Body body;
    while (current().kind != Kind::kEnd) {
      const int at_line = line();
      if (current().kind == Kind::kData) {
        body.push_back({at_line, Data{take().text}});
      } else if (current().kind == Kind::kPrintBegin) {
        take();
        body.push_back({at_line, Print{parse_tuple()}});
        expect(Kind::kPrintEnd, "'}}'");
      } else {
        expect(Kind::kBlockBegin, "a tag");
        if (std::any_of(ends.begin(), ends.end(), [this](auto end) { return current().is_name(end); }))
          return body;
        body.push_back({at_line, parse_statement()});
      }
    }
    if (ends.size() > 0) error("missing '{}'", *(ends.end() - 1));
    return body;
  }

  void expect_block_end() { expect(Kind::kBlockEnd, "'%}'"); }

  // A body that ends with one given tag, through the `%}` of that tag. The current token is its opening `%}`.
  Body parse_block(std::string_view end) {
    expect_block_end();
    Body body = parse_body({end});
    take();
    expect_block_end();
    return body;
  }

  Statement::Node parse_statement() {
    const Text tag = expect_name("a statement");
    const std::string_view name = tag.view();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "with") return parse_with();
    if (name == "generation")
      return With{{}, parse_block("endgeneration")};  // marks training text; prints its body
    if (name == "break" || name == "continue") {
      if (loops_ == 0) error("'{}' outside of a loop", name);
      expect_block_end();
      if (name == "break") return Break{};
      return Continue{};
    }
    error("unknown statement '{}'", name);
  }

  If parse_if() {
    If node;
    while (true) {
      ExprPtr test = parse_tuple(/*with_conditional=*/false);
      expect_block_end();
      Body body = parse_body({"elif", "else", "endif"});
      node.branches.emplace_back(std::move(test), std::move(body));
      if (skip_name("elif")) continue;
      if (skip_name("else"))
        node.otherwise = parse_else("endif");
      else
        take_end();
      return node;
    }
  }

  void take_end() {
    take();
    expect_block_end();
  }
  Body parse_else(std::string_view end) { return parse_block(end); }

  For parse_for() {
    For node{};
    node.target = parse_target(/*with_attribute=*/false);
    if (!skip_name("in")) error("expected 'in', got '{}'", spelling(current()));
    node.iterable = parse_tuple(/*with_conditional=*/false);
    if (skip_name("if")) node.condition = parse_expression();
    node.recursive = skip_name("recursive");
    expect_block_end();
    ++loops_;
    node.body = parse_body({"else", "endfor"});
    --loops_;
    if (skip_name("else"))
      node.otherwise = parse_else("endfor");
    else
      take_end();
    return node;
  }

  Statement::Node parse_set() {
    Target target = parse_target(/*with_attribute=*/true);
    if (skip_operator("=")) {
      Set node{std::move(target), parse_tuple()};
      expect_block_end();
      return node;
    }
    ExprPtr filter;
    if (current().is_operator("|")) filter = parse_filters(nullptr);
    Body body = parse_outside_loop("endset");
    return SetBlock{std::move(target), std::move(filter), std::move(body)};
  }

  // Bodies that become text of their own: `break` cannot leave them.
  Body parse_outside_loop(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_block(end);
    loops_ = loops;
    return body;
  }

  // The same, and what the body wants to know of its call.
  void parse_macro_body(Macro& macro, std::string_view end) {
    const MacroUse outer = std::exchange(uses_, {});
    macro.body = parse_outside_loop(end);
    macro.uses = uses_;
    uses_.varargs |= outer.varargs;
    uses_.kwargs |= outer.kwargs;
    uses_.caller |= outer.caller;
  }

  void parse_parameters(Macro& macro) {
    expect_operator("(");
    while (!skip_operator(")")) {
      if (!macro.parameters.empty()) {
        expect_operator(",");
        if (skip_operator(")")) return;
      }
      Text name = expect_name("a parameter name");
      ExprPtr fallback;
      if (skip_operator("=")) {
        fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().second) {
        error("parameter '{}' without a default follows one with a default", name.view());
      }
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
    }
  }

  Macro parse_macro() {
    Macro macro{};
    macro.name = expect_name("a macro name");
    parse_parameters(macro);
    parse_macro_body(macro, "endmacro");
    return macro;
  }

  CallBlock parse_call_block() {
    CallBlock node{};
    node.caller.name = Text::of_static("caller");
    if (current().is_operator("(")) parse_parameters(node.caller);
    node.call = parse_expression();
    if (!std::holds_alternative<Call>(node.call->node))
      error("'call' needs a call, as in {{% call name() %}}");
    parse_macro_body(node.caller, "endcall");
    return node;
  }

  FilterBlock parse_filter_block() {
    FilterBlock node;
    node.filter = parse_filters(nullptr, /*starts_inline=*/true);
    node.body = parse_outside_loop("endfilter");
    return node;
  }

  With parse_with() {
    With node;
    while (current().kind != Kind::kBlockEnd) {
      if (!node.bindings.empty()) expect_operator(",");
      Target target = parse_target(/*with_attribute=*/false);
      expect_operator("=");
      node.bindings.emplace_back(std::move(target), parse_expression());
    }
    node.body = parse_block("endwith");
    return node;
  }

  Target parse_target(bool with_attribute) {
    const NestingGuard guard(*this);
    Target first = parse_single_target(with_attribute);
    if (!current().is_operator(",")) return first;
    Target tuple;
    tuple.items.push_back(std::move(first));
    while (skip_operator(",")) {
      if (current().kind != Kind::kName && !current().is_operator("(")) break;
      if (current().is_name("in")) break;
      tuple.items.push_back(parse_single_target(/*with_attribute=*/false));
    }
    return tuple;
  }

  Target parse_single_target(bool with_attribute) {
    if (skip_operator("(")) {
      Target inner = parse_target(/*with_attribute=*/false);
      expect_operator(")");
      return inner;
    }
    Target target;
    target.name = expect_name("a name to assign to");
    static constexpr std::string_view kReserved[] = {"true", "True", "false", "False", "none", "None"};
    if (std::count(std::begin(kReserved), std::end(kReserved), target.name.view()) > 0)
      error("cannot assign to '{}'", target.name.view());
    if (with_attribute && skip_operator(".")) target.attribute = expect_name("an attribute name");
    return target;
  }

  // ---- Expressions, weakest binding first ----

  // An expression, or several with commas between them: a tuple.
  ExprPtr parse_tuple(bool with_conditional = true) {
    const int at_line = line();
    const auto parse_one = [&] { return with_conditional ? parse_expression() : parse_or(); };
    ExprPtr first = parse_one();
    if (!current().is_operator(",")) return first;
    ListDisplay tuple{{}, /*is_tuple=*/true};
    tuple.items.push_back(std::move(first));
    while (skip_operator(",")) {
      if (ends_tuple()) break;
      tuple.items.push_back(parse_one());
    }
    return make(at_line, std::move(tuple));
  }

  bool ends_tuple() const {
    return current().kind == Kind::kPrintEnd || current().kind == Kind::kBlockEnd ||
           current().is_operator(")");
  }

  ExprPtr parse_expression() {
    const NestingGuard guard(*this);
    const int at_line = line();
    ExprPtr value = parse_or();
    while (skip_name("if")) {
      ExprPtr test = parse_or();
      ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = make(at_line, Conditional{std::move(test), std::move(value), std::move(otherwise)});
    }
    return value;
  }

  ExprPtr binary(int at_line, BinaryOp op, ExprPtr left, ExprPtr right) const {
    return make(at_line, Binary{op, std::move(left), std::move(right)});
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    for (int at_line = line(); skip_name("or"); at_line = line())
      left = binary(at_line, BinaryOp::kOr, std::move(left), parse_and());
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    for (int at_line = line(); skip_name("and"); at_line = line())
      left = binary(at_line, BinaryOp::kAnd, std::move(left), parse_not());
    return left;
  }

  ExprPtr parse_not() {
    const int at_line = line();
    if (!skip_name("not")) return parse_comparison();
    const NestingGuard guard(*this);
    return make(at_line, Unary{UnaryOp::kNot, parse_not()});
  }

  std::optional<CompareOp> skip_comparison() {
    static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual}, {"<", CompareOp::kLess},
        {"<=", CompareOp::kLessEqual}, {">", CompareOp::kGreater},   {">=", CompareOp::kGreaterEqual}};
    for (const auto& [spelled, op] : kOps)
      if (skip_operator(spelled)) return op;
    if (skip_name("in")) return CompareOp::kIn;
    if (current().is_name("not") && ahead().is_name("in")) {
      take();
      take();
      return CompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr parse_comparison() {
    const int at_line = line();
    ExprPtr first = parse_sum();
    std::vector<std::pair<CompareOp, ExprPtr>> rest;
    while (const auto op = skip_comparison()) rest.emplace_back(*op, parse_sum());
    if (rest.empty()) return first;
    return make(at_line, Comparison{std::move(first), std::move(rest)});
  }

  using Level = ExprPtr (Parser::*)();

  // left op right op right..., all of one precedence, operands parsed by `next`.
  ExprPtr parse_chain(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Level next) {
    ExprPtr left = (this->*next)();
    while (true) {
      const int at_line = line();
      const auto op =
          std::find_if(ops.begin(), ops.end(), [this](auto& o) { return current().is_operator(o.first); });
      if (op == ops.end()) return left;
      take();
      left = binary(at_line, op->second, std::move(left), (this->*next)());
    }
  }

  ExprPtr parse_sum() {
    return parse_chain({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}}, &Parser::parse_concat);
  }
  ExprPtr parse_concat() { return parse_chain({{"~", BinaryOp::kConcat}}, &Parser::parse_product); }
  ExprPtr parse_product() {
    return parse_chain({{"*", BinaryOp::kMultiply},
                        {"/", BinaryOp::kDivide},
                        {"//", BinaryOp::kFloorDivide},
                        {"%", BinaryOp::kModulo}},
                       &Parser::parse_power);
  }
  ExprPtr parse_power() { return parse_chain({{"**", BinaryOp::kPower}}, &Parser::parse_filtered); }
  ExprPtr parse_filtered() { return parse_filters(parse_unary()); }

  // A sign binds tighter than a filter: -x|abs is (-x)|abs.
  ExprPtr parse_unary() {
    const int at_line = line();
    if (!current().is_operator("-") && !current().is_operator("+")) return parse_postfix(parse_primary());
    const NestingGuard guard(*this);
    const UnaryOp op = take().text.view() == "-" ? UnaryOp::kNegative : UnaryOp::kPositive;
    return make(at_line, Unary{op, parse_unary()});
  }

  ExprPtr parse_primary() {
    const NestingGuard guard(*this);
    const int at_line = line();
    const Token& token = take();
    switch (token.kind) {
      case Kind::kName:
        return make(at_line, parse_name(token.text));
      case Kind::kString:
        return make(at_line, Literal{Value(parse_adjacent_strings(token.text))});
      case Kind::kInteger:
        return make(at_line, Literal{Value(token.integer)});
      case Kind::kFloat:
        return make(at_line, Literal{Value(token.real)});
      case Kind::kOperator:
        break;
      default:
        --at_;
        error("expected an expression, got '{}'", spelling(token));
    }
    if (token.is_operator("(")) {
      ExprPtr inner =
          current().is_operator(")") ? make(at_line, ListDisplay{{}, /*is_tuple=*/true}) : parse_tuple();
      expect_operator(")");
      return inner;
    }
    if (token.is_operator("[")) return make(at_line, ListDisplay{parse_list_items(), /*is_tuple=*/false});
    if (token.is_operator("{")) return parse_dict(at_line);
    --at_;
    error("expected an expression, got '{}'", spelling(token));
  }

  Expr::Node parse_name(const Text& name) {
    const std::string_view spelled = name.view();
    uses_.varargs |= spelled == "varargs";
    uses_.kwargs |= spelled == "kwargs";
    uses_.caller |= spelled == "caller";
    if (spelled == "true" || spelled == "True") return Literal{Value(true)};
    if (spelled == "false" || spelled == "False") return Literal{Value(false)};
    if (spelled == "none" || spelled == "None") return Literal{Value(None{})};
    return Name{name};
  }

  Text parse_adjacent_strings(const Text& first) {
    if (current().kind != Kind::kString) return first;
    std::string joined(first.view());
    while (current().kind == Kind::kString) joined += take().text.view();
    return Text(std::move(joined));
  }

  ExprList parse_list_items() {
    ExprList items;
    while (!skip_operator("]")) {
      if (!items.empty()) {
        expect_operator(",");
        if (skip_operator("]")) break;
      }
      items.push_back(parse_expression());
    }
    return items;
  }

  ExprPtr parse_dict(int at_line) {
    DictDisplay dict;
    while (!skip_operator("}")) {
      if (!dict.entries.empty()) {
        expect_operator(",");
        if (skip_operator("}")) break;
      }
      ExprPtr key = parse_expression();
      expect_operator(":");
      dict.entries.emplace_back(std::move(key), parse_expression());
    }
    return make(at_line, std::move(dict));
  }

  ExprPtr parse_postfix(ExprPtr value) {
    while (true) {
      const int at_line = line();
      if (skip_operator(".")) {
        value = parse_dotted(at_line, std::move(value));
      } else if (skip_operator("[")) {
        value = parse_subscript(at_line, std::move(value));
      } else if (skip_operator("(")) {
        CallArgs args = parse_call_args();
        value = make(at_line, Call{std::move(value), std::move(args)});
      } else {
        return value;
      }
    }
  }

  ExprPtr parse_dotted(int at_line, ExprPtr object) {
    if (current().kind == Kind::kInteger)
      return make(at_line, Item{std::move(object), make(at_line, Literal{Value(take().integer)})});
    return make(at_line, Attribute{std::move(object), expect_name("an attribute name")});
  }

  // After `[`: an index or a slice.
  ExprPtr parse_subscript(int at_line, ExprPtr object) {
    const auto part = [this]() -> ExprPtr {
      return current().is_operator(":") || current().is_operator("]") ? nullptr : parse_expression();
    };
    ExprPtr start = part();
    if (!skip_operator(":")) {
      if (!start) error("expected an index, got ']'");
      expect_operator("]");
      return make(at_line, Item{std::move(object), std::move(start)});
    }
    ExprPtr stop = part();
    ExprPtr step = skip_operator(":") ? part() : nullptr;
    expect_operator("]");
    return make(at_line, Slice{std::move(object), std::move(start), std::move(stop), std::move(step)});
  }

  // After `(`, through `)`.
  CallArgs parse_call_args() {
    CallArgs args;
    while (!skip_operator(")")) {
      if (!args.positional.empty() || !args.named.empty()) {
        expect_operator(",");
        if (skip_operator(")")) break;
      }
      if (current().is_operator("*") || current().is_operator("**"))
        error("'{}' arguments are not supported", spelling(current()));
      if (current().kind == Kind::kName && ahead().is_operator("=")) {
        Text name = take().text;
        take();
        args.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!args.named.empty()) error("a positional argument follows a named one");
        args.positional.push_back(parse_expression());
      }
    }
    return args;
  }

  // `| filter(...)`, `is [not] test ...` and calls of their results. `starts_inline`: the first filter has no
  // `|`.
  ExprPtr parse_filters(ExprPtr value, bool starts_inline = false) {
    while (true) {
      const int at_line = line();
      if (starts_inline || skip_operator("|")) {
        starts_inline = false;
        Text name = expect_name("a filter name");
        CallArgs args = skip_operator("(") ? parse_call_args() : CallArgs{};
        value = make(at_line, Filter{std::move(value), std::move(name), std::move(args)});
      } else if (value && skip_name("is")) {
        value = parse_test(at_line, std::move(value));
      } else if (value && skip_operator("(")) {
        CallArgs args = parse_call_args();
        value = make(at_line, Call{std::move(value), std::move(args)});
      } else {
        return value;
      }
    }
  }

  ExprPtr parse_test(int at_line, ExprPtr value) {
    const bool negated = skip_name("not");
    Text name = expect_name("a test name");
    CallArgs args;
    if (skip_operator("(")) {
      args = parse_call_args();
    } else if (starts_test_argument()) {
      args.positional.push_back(parse_postfix(parse_primary()));
    }
    return make(at_line, Test{std::move(value), std::move(name), std::move(args), negated});
  }

  // `x is divisibleby 3`: one argument may follow without parentheses.
  bool starts_test_argument() const {
    const Token& token = current();
    if (token.kind == Kind::kName) {
      if (token.is_name("is")) error("tests cannot be chained with 'is'");
      return !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
    }
    return token.kind == Kind::kString || token.kind == Kind::kInteger || token.kind == Kind::kFloat ||
           token.is_operator("[") || token.is_operator("{");
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  MacroUse uses_ = {};  // of the macro around
  int loops_ = 0;       // for statements around the current one that `break` can leave
};

}  // namespace

Body parse(const Text& source) { return Parser(lex(source)).run(); }

}  // namespace longspan::text::jinja
