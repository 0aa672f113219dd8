// The template engine against what jinja2 3.1 gives (tests/fixtures/jinja/cases.json), and what only this
// engine promises: messages, limits, shared strings.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/jinja/template.h"

namespace longspan::text::jinja {
namespace {

using Json = nlohmann::ordered_json;

RenderOptions fixed_clock() {
  RenderOptions options;
  options.now = [] {
    std::tm now{};
    now.tm_year = 2024 - 1900;
    now.tm_mon = 6;
    now.tm_mday = 26;
    now.tm_hour = 13;
    return now;
  };
  return options;
}

std::string render(std::string_view source, const Json& context = Json::object(),
                   const RenderOptions& options = fixed_clock()) {
  return Template("t", source).render(context, options);
}

std::string error_of(std::string_view source, const Json& context = Json::object(),
                     const RenderOptions& options = fixed_clock()) {
  try {
    return "no error: " + render(source, context, options);
  } catch (const Error& error) {
    return error.what();
  }
}

// One letter and a text, as in the fixture: r rendered, x raised by the template, e any other error.
std::pair<std::string, std::string> outcome(const std::string& source, const Json& context) {
  try {
    return {"r", render(source, context)};
  } catch (const RaisedException& raised) {
    return {"x", raised.what()};
  } catch (const Error&) {
    return {"e", ""};
  }
}

TEST(Jinja, GivesWhatJinja2Gives) {
  Json fixture;
  std::ifstream(LONGSPAN_SOURCE_DIR "/tests/fixtures/jinja/cases.json") >> fixture;
  ASSERT_GT(fixture["cases"].size(), 900u);
  for (const Json& one : fixture["cases"]) {
    const std::string source = one[0];
    const auto [kind, text] = outcome(source, fixture["context"]);
    EXPECT_EQ(kind, one[1].get<std::string>()) << source;
    EXPECT_EQ(text, one[2].get<std::string>()) << source;
  }
}

TEST(Jinja, ErrorsNameTemplateLineAndConstruct) {
  EXPECT_EQ(error_of("a\nb\n{{ x | foo }}"), "t line 3: unknown filter 'foo'");
  EXPECT_EQ(error_of("{% if 1 is odder %}{% endif %}"), "t line 1: unknown test 'odder'");
  EXPECT_EQ(error_of("\n{{ m.role.name }}", {{"m", Json::object()}}), "t line 2: 'role' is undefined");
  EXPECT_EQ(error_of("{% for x in [1] %}\n{% frobnicate %}{% endfor %}"),
            "t line 2: unknown statement 'frobnicate'");
  EXPECT_EQ(error_of("{% for x in [1] %}\n\n"), "t line 2: missing 'endfor'");
  EXPECT_EQ(error_of("{{ f(*[1]) }}"), "t line 1: '*' arguments are not supported");
  EXPECT_EQ(error_of("{% include 'x' %}"), "t line 1: unknown statement 'include'");
  EXPECT_EQ(error_of("{{ 'a'\n | items }}"), "t line 2: filter 'items': needs a mapping, got 'str'");
  EXPECT_EQ(error_of("{{ 'a' +\n\n1 }}"), "t line 1: unsupported operands of '+': 'str' and 'int'");
  EXPECT_EQ(error_of("{{ 'a'.encode('x') }}"), "t line 1: 'encode' is undefined");
  EXPECT_EQ(error_of("{{ [1]|tojson(width=3) }}"), "t line 1: filter 'tojson': has no parameter 'width'");
  EXPECT_EQ(error_of("{% macro f() %}\n{{ none + 1 }}{% endmacro %}\n\n{{ f() }}"),
            "t line 2: unsupported operands of '+': 'NoneType' and 'int'");
  EXPECT_EQ(error_of("{% set x.y = 1 %}"), "t line 1: cannot set 'x.y': 'x' is not a namespace");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"),
            "t line 1: the result of '+' does not fit a 64-bit integer");
}

TEST(Jinja, RaisedTextIsPassedOnAsItIs) {
  try {
    render("\n{{ [1]|map('upper')|list and raise_exception('No user query found in messages.') }}");
    FAIL();
  } catch (const RaisedException& raised) {
    EXPECT_STREQ(raised.what(), "No user query found in messages.");
    EXPECT_EQ(raised.kind, ErrorKind::kInvalid);
  }
}

TEST(Jinja, LimitsHaveNames) {
  RenderOptions options = fixed_clock();
  options.limits = {
      .max_steps = 10'000, .max_built_bytes = 1'000'000, .max_output_bytes = 1'000, .max_depth = 100};
  const auto error = [&](std::string_view source) { return error_of(source, Json::object(), options); };
  EXPECT_NE(
      error("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}").find("max_"),
      std::string::npos);
  EXPECT_NE(
      error("{% for a in range(100) %}{% for b in range(50) %}{% set x = a + b %}{% endfor %}{% endfor %}")
          .find("max_steps = 10000"),
      std::string::npos);
  EXPECT_NE(error("{{ 'a' * 1000000000000 }}").find("max_built_bytes = 1000000"), std::string::npos);
  EXPECT_NE(error("{{ '' | indent(1000000000) }}").find("max_built_bytes"), std::string::npos);
  EXPECT_NE(error("{{ 'abc'.replace('', 'x' * 300000) | length }}").find("max_built_bytes"),
            std::string::npos);
  EXPECT_NE(error("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(90) %}{% set ns.s = ns.s ~ ns.s "
                  "%}{% endfor %}")
                .find("max_built_bytes"),
            std::string::npos);
  EXPECT_NE(error("{% for a in range(300) %}12345{% endfor %}").find("max_output_bytes = 1000"),
            std::string::npos);
  EXPECT_NE(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("max_depth = 100"),
            std::string::npos);
  EXPECT_NE(error("{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}").find("max_depth = 100"),
            std::string::npos);
  EXPECT_NE(error("{{ 'a'.ljust(1000000000000) }}").find("max_built_bytes"), std::string::npos);
  EXPECT_NE(error("{{ 'a'.zfill(1000000000000) }}").find("max_built_bytes"), std::string::npos);
  EXPECT_NE(error("{{ [1]|batch(1000000000000, 0) }}").find("max_built_bytes"), std::string::npos);
  EXPECT_NE(error("{{ [1]|slice(1000000000000) }}").find("max_built_bytes"), std::string::npos);
  // A list that holds itself twice, a hundred times over: small in memory, endless as text.
  EXPECT_NE(error("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
                  "endfor %}{{ ns.l }}")
                .find("max_"),
            std::string::npos);
}

TEST(Jinja, NestingOfSourceAndValuesIsBounded) {
  const auto repeat = [](std::string_view text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  EXPECT_NE(error_of("{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}").find("nested deeper"),
            std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("not ", 5000) + "1 }}").find("nested deeper"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeat("-", 5000) + "1 }}").find("nested deeper"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeat(" + 1", 5000) + " }}").find("expression deeper"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeat("|abs", 5000) + " }}").find("expression deeper"), std::string::npos);
  EXPECT_NE(error_of(repeat("{% if 1 %}", 5000)).find("nested deeper"), std::string::npos);
  EXPECT_NE(
      error_of("{% set ns = namespace(l=1) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}")
          .find("value nested deeper"),
      std::string::npos);
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  EXPECT_THROW(render("{{ deep }}", {{"deep", deep}}), Error);
}

TEST(Jinja, ALoopMaySeeItself) {
  EXPECT_EQ(render("{% for x in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
}

TEST(Jinja, NamespaceMayHoldItself) {
  EXPECT_EQ(
      render("{% set ns = namespace(a=1) %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.me.l[0].a }}"),
      "1");
}

TEST(Jinja, MacroDiesWithTheBlockThatDefinesIt) {
  EXPECT_EQ(
      error_of(
          "{% set ns = namespace() %}{% with %}{% macro f() %}x{% endmacro %}{% set ns.f = f %}{{ ns.f() }}"
          "{% endwith %}{{ ns.f() }}"),
      "t line 1: macro 'f' is called after its block ended");
}

TEST(Jinja, ARecursiveLoopDiesWithTheBlockAround) {
  EXPECT_EQ(
      error_of(
          "{% set ns = namespace() %}{% with %}{% for x in [1] recursive %}{% set ns.loop = loop %}{% endfor "
          "%}{% endwith %}{{ ns.loop([2]) }}"),
      "t line 1: loop(...) takes the items of one more loop, within its own");
}

TEST(Jinja, InvalidUtf8IsReplaced) {
  EXPECT_EQ(render("a\xFF{{ x }}", {{"x", "b\xC3"}}),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(render("{{ '\\ud800' }}"), "\xEF\xBF\xBD");
}

TEST(Jinja, LargeIntegersFromJson) {
  EXPECT_EQ(render("{{ x }} {{ x|tojson }}", {{"x", INT64_MIN}}),
            "-9223372036854775808 -9223372036854775808");
  EXPECT_EQ(render("{{ x }}", {{"x", UINT64_MAX}}),
            "1.8446744073709552e+19");  // does not fit: becomes a float
}

TEST(Jinja, RendersOnManyThreadsAtOnce) {
  const Template shared("t", "{% for m in l %}{{ m|upper }}{% endfor %}");
  EXPECT_EQ(shared.render(Json{{"l", {"a", "b"}}}), "AB");
  EXPECT_EQ(shared.render(Json{{"l", {"c"}}}), "C");
}

// trim, split and slices of a long message must not copy it for each filter: 2,000 of them on 1 MB within 64
// MB.
TEST(Jinja, LongStringsAreShared) {
  RenderOptions options = fixed_clock();
  options.limits.max_built_bytes = size_t{64} << 20;
  const Json context = {{"text", std::string(1'000'000, 'x') + " "}};
  EXPECT_EQ(
      render(
          "{% for i in range(2000) %}{% set y = text|trim|string|trim('y') %}{% endfor %}{{ text|length }}",
          context, options),
      "1000001");
}

}  // namespace
}  // namespace longspan::text::jinja
