// What a schema lets an answer be, keyword by keyword; and over random texts, against a slow validator.
#include "text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "text/grammar/json_validator.h"
#include "text/grammar/random_text.h"

namespace longspan::testing {
namespace {

using text::Grammar;
using text::json_schema_grammar;
using text::matches;

struct Case {
  const char* schema;
  std::vector<const char*> fits;
  std::vector<const char*> does_not;
};

void check(const Case& one) {
  const Grammar grammar = json_schema_grammar(Json::parse(one.schema));
  for (const char* text : one.fits) EXPECT_TRUE(matches(grammar, text)) << one.schema << "\n" << text;
  for (const char* text : one.does_not) EXPECT_FALSE(matches(grammar, text)) << one.schema << "\n" << text;
}

TEST(JsonSchema, Type) {
  check({R"({"type": "null"})", {"null"}, {"nul", "nulls", "\"null\"", ""}});
  check({R"({"type": "boolean"})", {"true", "false"}, {"True", "1", "truefalse"}});
  check({R"({"type": "integer"})",
         {"0", "-1", "42", "999999999999999999"},
         {"1.0", "01", "+1", "1e3", "-", "1000000000000000000"}});
  check({R"({"type": "number"})", {"0", "-1.5", "3e8", "0.25E-3"}, {".5", "1.", "1e", "NaN", "1e400", "00"}});
  check({R"({"type": ["integer", "null"]})", {"7", "null"}, {"\"7\"", "7null"}});
  check({R"({"type": "object"})",
         {"{}", R"({"a":1})", R"({"a": {"b": [1, "x", null]}})"},
         {"[]", "{a:1}", "{\"a\":}", "{,}"}});
  check({R"({"type": "array"})", {"[]", "[1]", R"(["a", {}, [true]])"}, {"{}", "[1,]", "[,1]", "[1 2]"}});
}

TEST(JsonSchema, StringsAreValidUtf8WithTheEscapesOfJson) {
  check({R"({"type": "string"})",
         {R"("")", R"("abc")", R"("a\"b\\c\/d\n\u00e9")", "\"\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80\"",
          R"("\ud83d\ude00")"},
         {R"("a)", R"("a\x")", "\"a\nb\"", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", "\"\x80\"",
          "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE6\x97\""}});
}

TEST(JsonSchema, LengthsCountCharacters) {
  check({R"({"type": "string", "minLength": 2, "maxLength": 3})",
         {R"("ab")", R"("abc")", "\"\xE6\x97\xA5\xE6\x97\xA5\"", R"("\n\u00e9x")",
          R"("\ud83d\ude00\ud83d\ude00")"},
         {R"("a")", R"("abcd")", R"("")", "\"\xE6\x97\xA5\""}});
  EXPECT_THROW(json_schema_grammar(Json::parse(R"({"type": "string", "minLength": 3, "maxLength": 2})")),
               Error);
}

TEST(JsonSchema, BoundsOfIntegersAreExact) {
  check({R"({"type": "integer", "minimum": -3, "maximum": 12})",
         {"-3", "-1", "0", "9", "12"},
         {"-4", "13", "-0", "120"}});
  check({R"({"type": "integer", "exclusiveMinimum": 0})", {"1", "10"}, {"0", "-1"}});
  check({R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})", {"1", "2"}, {"0", "3"}});
  check({R"({"type": "integer", "minimum": 5, "exclusiveMinimum": true})", {"6"}, {"5"}});
}

TEST(JsonSchema, WholeBoundsOfNumbers) {
  check({R"({"type": "number", "minimum": 0, "maximum": 1})",
         {"0", "1", "0.5", "1.0", "0.000001"},
         {"-0.5", "1.1", "2", "1.01"}});
  check({R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
         {"0.5", "0.01"},
         {"0", "1", "0.0", "1.0"}});
  check({R"({"type": "number", "maximum": -2})", {"-2", "-2.5", "-3"}, {"-1", "-1.9", "0", "2"}});
}

TEST(JsonSchema, BoundsOfNumbersMayHaveAFraction) {
  check({R"({"type": "number", "minimum": 0.5, "maximum": 2.25})",
         {"0.5", "0.50", "1", "2", "2.0", "2.2", "2.25", "0.500001", "1.9999", "2.249"},
         {"0.4", "0.49", "0", "2.26", "2.3", "3", "-1", "2.2500001", "0.49999"}});
  check({R"({"type": "number", "exclusiveMinimum": -0.1, "exclusiveMaximum": 0.1})",
         {"0", "0.0", "0.05", "-0.05", "0.09", "-0.0999", "0.00001"},
         {"0.1", "-0.1", "0.10", "-0.10", "1", "-1", "0.2"}});
  check({R"({"type": "number", "minimum": 99.5})",
         {"99.5", "99.6", "100", "12345.678"},
         {"99.4", "99", "-100"}});
  check({R"({"type": "number", "maximum": -12.75})",
         {"-12.75", "-13", "-12.8", "-100.5"},
         {"-12.7", "-12", "12.75", "0"}});
}

TEST(JsonSchema, BoundsWithManyDigitsAreRefused) {
  for (const char* bound : {"0.12345678", "1e-9", "123456789012.123456"})
    EXPECT_THROW(
        json_schema_grammar(Json::parse(fmt::format(R"({{"type": "number", "minimum": {}}})", bound))), Error)
        << bound;
}

TEST(JsonSchema, MultiplesOfWholeNumbers) {
  check({R"({"type": "integer", "multipleOf": 7})",
         {"0", "7", "-14", "700", "999999999999999999"},
         {"1", "8", "-15", "07", "-0", "7.0", "1000000000000000006"}});
  check({R"({"type": "integer", "multipleOf": 5, "minimum": -12, "exclusiveMaximum": 115})",
         {"-10", "-5", "0", "5", "95", "100", "110"},
         {"-15", "115", "120", "-12", "3"}});
  check({R"({"type": "number", "multipleOf": 3, "minimum": 1.5})",
         {"3", "6", "12"},
         {"0", "1.5", "4", "3.0", "-3"}});
  check({R"({"multipleOf": 10})", {"0", "10"}, {"5", "\"10\""}});
  EXPECT_THROW(json_schema_grammar(
                   Json::parse(R"({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13})")),
               Error)
      << "there is none";
}

TEST(JsonSchema, MultiplesOfATenthAndSo) {
  check({R"({"type": "number", "multipleOf": 0.01})",
         {"0", "-1.5", "12.25", "7"},
         {"0.001", "1.234", "1e2", "00.1"}});
  check({R"({"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 2})",
         {"0.3", "1", "1.9", "2", "2.0"},
         {"0.2", "0.25", "2.1", "1.95", "0"}});
}

// Every integer and every decimal of two digits, near and far from the bounds.
TEST(JsonSchema, NumbersFitExactlyWhereTheirValueDoes) {
  Random random(3);
  const auto any = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < 60; ++i) {
    const int64_t min = any(-300, 300);  // hundredths
    const int64_t max = min + any(1, 400);
    const int64_t divisor = any(1, 9);
    const bool above = any(0, 1) == 1;
    const Grammar grammar = json_schema_grammar(Json::parse(fmt::format(
        R"({{"type": "number", "{}": {}, "maximum": {}}})", above ? "exclusiveMinimum" : "minimum",
        static_cast<double>(min) / 100, static_cast<double>(max) / 100)));
    for (int64_t value = min - 120; value <= max + 120; ++value) {
      if (value == 0) continue;  // may be written with a sign
      const std::string text =
          fmt::format("{}{}.{:02}", value < 0 ? "-" : "", std::abs(value) / 100, std::abs(value) % 100);
      const bool fits = (above ? value > min : value >= min) && value <= max;
      EXPECT_EQ(matches(grammar, text), fits) << text << " from " << min << " to " << max << ", " << above;
    }
    const Json integers = {
        {"type", "integer"}, {"minimum", min}, {"maximum", max + 2000}, {"multipleOf", divisor}};
    const Grammar multiples = json_schema_grammar(integers);
    for (int64_t value = min - 20; value <= max + 2020; ++value)
      EXPECT_EQ(matches(multiples, std::to_string(value)),
                value >= min && value <= max + 2000 && value % divisor == 0)
          << value << " for " << integers;
  }
}

TEST(JsonSchema, UniqueItemsOfAShortList) {
  check({R"({"type": "array", "items": {"enum": ["a", "ab", 3]}, "uniqueItems": true, "minItems": 1})",
         {R"(["a"])", R"(["ab", "a"])", R"([3,"a","ab"])", R"([ "ab",3 ])"},
         {"[]", R"(["a","a"])", R"([3, "a", 3])", R"(["b"])", R"(["a",])", R"(["a","ab",3,"a"])"}});
  check(
      {R"({"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": true, "maxItems": 2, "$defs": {"e": {"enum": [1, 2, 3]}}})",
       {"[]", "[1]", "[3, 1]"},
       {"[1, 2, 3]", "[2, 2]"}});
  check({R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 1})",
         {"[]", "[5]"},
         {"[5, 6]"}});
}

TEST(JsonSchema, EnumAndConst) {
  check({R"({"enum": ["a", "ab", 1, null, {"x": [1]}]})",
         {R"("a")", R"("ab")", "1", "null", R"({"x":[1]})"},
         {R"("b")", "11", "nul"}});
  check({R"({"const": "x\"y"})", {R"("x\"y")"}, {R"("x")", "x"}});
  check({R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}});
  EXPECT_THROW(json_schema_grammar(Json::parse(R"({"enum": []})")), Error);
}

TEST(JsonSchema, PropertiesComeInOrderAndTheListIsClosed) {
  const char* schema = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
                           "c": {"type": "null"}}, "required": ["b"]})";
  check({schema,
         {R"({"b":"x"})", R"({"a":1,"b":""})", R"({"b":"","c":null})",
          "{ \"a\": 1, \"b\": \"x\", \"c\": null }", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"},
         {R"({})", R"({"a":1})", R"({"b":"","a":1})", R"({"b":"","d":1})", R"({"b":1})", R"({"b":"",})",
          R"({"b":"","b":""})"}});
  check({R"({"properties": {"a": {}, "b": {}}})",
         {"{}", R"({"a":[]})", R"({"b":1})", R"({"a":1,"b":2})"},
         {R"({"b":1,"a":2})"}});
}

TEST(JsonSchema, AdditionalPropertiesComeLastUnderOtherNames) {
  const char* schema =
      R"({"properties": {"name": {"type": "string"}, "nam\u00e9": {"type": "null"}}, "required": ["name"],
                           "additionalProperties": {"type": "integer"}})";
  check({schema,
         {R"({"name":""})", R"({"name":"","x":1,"names":2,"na":3,"":4})", R"({"name":"","é":1})",
          R"({"name":"","x\n":1})"},
         {R"({"x":1,"name":""})", R"({"name":"","name":1})", R"({"name":"","x":"1"})",
          R"({"name":"","n\u0061me":1})", "{\"name\":\"\",\"nam\xC3\xA9\":1}"}});
  check({R"({"required": ["q"], "additionalProperties": {"type": "integer"}})",
         {R"({"q":1})", R"({"q":1,"r":2})"},
         {"{}", R"({"r":2})"}});
  check({R"({"additionalProperties": false})", {"{}"}, {R"({"a":1})"}});
}

TEST(JsonSchema, Arrays) {
  check({R"({"items": {"type": "integer"}})",
         {"[]", "[1]", "[1,2]", "[ 1, 2 ]", "[\n  1\n]"},
         {"[\"a\"]", "[1,]", "[1"}});
  check({R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 4})",
         {"[1,2]", "[1,2,3]", "[1,2,3,4]"},
         {"[]", "[1]", "[1,2,3,4,5]"}});
  check({R"({"items": {"type": "integer"}, "maxItems": 2})", {"[]", "[1]", "[1,2]"}, {"[1,2,3]"}});
  check({R"({"items": true, "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}});
  check({R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
         {"[]", "[1]", R"([1,"a"])"},
         {R"([1,"a",2])", R"(["a"])"}});
  check({R"({"items": [{"type": "integer"}], "minItems": 1})", {"[1]", R"([1,"a",2])"}, {"[]", R"(["a"])"}});
  EXPECT_THROW(json_schema_grammar(Json::parse(R"({"prefixItems": [{}], "items": false, "minItems": 2})")),
               Error);
}

TEST(JsonSchema, AlternativesMayBeginAlike) {
  const char* schema = R"({"anyOf": [
      {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
      {"type": "object", "properties": {"kind": {"const": "ab"}, "s": {"type": "string"}}, "required": ["kind", "s"]},
      {"type": "null"}]})";
  check({schema,
         {R"({"kind":"a","n":1})", R"({"kind":"ab","s":""})", "null"},
         {R"({"kind":"a","s":""})", R"({"kind":"ab","n":1})", R"({"kind":"abc"})"}});
  check({R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"1", "1.5"}, {"x"}});
  check(
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"},
       {"{}"}});
}

TEST(JsonSchema, ReferencesAndAllOf) {
  check(
      {R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"},
             "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["value"]}}})",
       {R"({"value":1})", R"({"value":1,"children":[]})",
        R"({"value":1,"children":[{"value":2},{"value":3,"children":[{"value":4}]}]})"},
       {R"({"children":[]})", R"({"value":1,"children":[{}]})"}});
  check(
      {R"({"allOf": [{"$ref": "#/definitions/a"}], "description": "x", "definitions": {"a": {"type": "integer", "minimum": 3}}})",
       {"3"},
       {"2"}});
  check(
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}, "required": ["a"]},
             {"properties": {"b": {"type": "string"}, "a": {"type": "integer", "maximum": 5}}, "required": ["b"]}]})",
       {R"({"a":3,"b":""})"},
       {R"({"a":3})", R"({"b":""})", R"({"a":6,"b":""})", R"({"a":1.5,"b":""})"}});
  check({R"({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}})", {"null"}, {"1"}});
  check({R"({"$ref": "#/$defs/List%3Cint%3E%25", "$defs": {"List<int>%": {"type": "null"}}})",
         {"null"},
         {"1"}});
  check({R"({"$ref": "#/$defs/5%", "$defs": {"5%": {"type": "null"}}})", {"null"}, {"1"}});
  check({R"({"type": "string", "nullable": true})", {"null", R"("a")"}, {"1"}});
}

// A part that nothing fits takes its alternative away; it never becomes an empty text.
TEST(JsonSchema, ContradictionsFitNothing) {
  const auto fits_only_true = [](const std::string& schema, const std::vector<const char*>& does_not) {
    const std::string either = fmt::format(R"({{"anyOf": [{}, {{"const": true}}]}})", schema);
    check({either.c_str(), {"true"}, does_not});
  };
  fits_only_true(R"({"type": "number", "minimum": 5, "maximum": -1})", {"", "0", "5", "-1", "2.5"});
  fits_only_true(R"({"type": "number", "exclusiveMinimum": 0.5, "maximum": -0.25})", {"", "0"});
  fits_only_true(R"({"allOf": [{"type": "string", "enum": ["a"]}], "type": "null"})", {R"("a")", "null"});
  fits_only_true(R"({"const": 1, "type": []})", {"1"});
  check({R"({"type": "array", "items": {"type": "number", "minimum": 1, "maximum": -0.25}})",
         {"[]"},
         {"[,]", "[ ,]", "[1]"}});
  check({R"({"properties": {"a": false, "b": {"type": "null"}}, "additionalProperties": true})",
         {R"({"b":null,"c":1})", "{}"},
         {R"({"a":1})", R"({"b":null,"a":1})"}});
}

TEST(JsonSchema, PatternsAndFormats) {
  check({R"({"type": "string", "pattern": "^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("aB")"}});
  check({R"({"pattern": "\"|\\\\"})", {R"("\"")", R"("x\\y")"}, {R"("x")", R"(""")"}});
  check({R"({"format": "date"})",
         {R"("2024-02-29")", R"("2023-12-31")", R"("2000-02-29")"},
         {R"("2023-02-29")", R"("1900-02-29")", R"("2023-04-31")", R"("2023-13-01")"}});
  check({R"({"format": "date-time"})",
         {R"("2024-02-29T23:59:59Z")", R"("2024-01-01T00:00:00.5+05:30")"},
         {R"("2024-01-01T24:00:00Z")", R"("2024-01-01")"}});
  check({R"({"format": "uuid"})",
         {R"("123e4567-e89b-12d3-a456-426614174000")"},
         {R"("123e4567e89b12d3a456426614174000")"}});
  check({R"({"format": "ipv4"})", {R"("192.168.0.1")"}, {R"("256.1.1.1")", R"("1.1.1")"}});
  check({R"({"format": "email"})", {R"("a.b+c@x-y.org")"}, {R"("a..b@x.org")", R"("@x.org")", R"("a@x")"}});
  check({R"({"format": "hostname"})",
         {R"("a")", R"("www.example.com")", R"("x-1.org")"},
         {R"("")", R"("-a.org")", R"("a-.org")", R"("a..b")", R"("a_b")"}});
  check({R"({"format": "ipv6"})",
         {R"("::")", R"("::1")", R"("2001:db8::8a2e:370:7334")", R"("1:2:3:4:5:6:7:8")", R"("1::")"},
         {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"("12345::")", R"("1:2:3:4:5:6:7::8")", R"(":1")",
          R"("1:")"}});
  check({R"({"format": "duration"})",
         {R"("P1D")", R"("P1Y2M3DT4H5M6S")", R"("PT36H")", R"("P4W")", R"("P1MT1M")"},
         {R"("P")", R"("PT")", R"("P1DT")", R"("1D")", R"("P1Y1D")", R"("P1W1D")", R"("P1.5D")"}});
  check({R"({"format": "uri"})",
         {R"("https://example.com")", R"("http://a.b:80/c%20d?e=f#g")"},
         {R"("example.com")", R"("http://a b/")", R"("http://a/%2")", R"("http://a/#b#c")"}});
  check({R"({"type": "string", "format": "password", "minLength": 2})", {R"("ab")"}, {R"("a")", "1"}});
  check({R"({"type": "integer", "format": "int32"})", {"1"}, {R"("1")"}});
}

TEST(JsonSchema, WhatIsNotObeyedIsRefusedByName) {
  const auto message = [](const char* schema) -> std::string {
    try {
      json_schema_grammar(Json::parse(schema));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const char* keyword : {"not", "if", "patternProperties", "propertyNames", "contains",
                              "dependentRequired", "unevaluatedProperties"}) {
    const std::string text = message(
        fmt::format(R"({{"type": "object", "properties": {{"a": {{"{}": {{}}}}}}}})", keyword).c_str());
    EXPECT_NE(text.find(keyword), std::string::npos) << text;
    EXPECT_NE(text.find("#/properties/a"), std::string::npos) << text;
  }
  EXPECT_NE(message(R"({"uniqueItems": true})").find("uniqueItems"), std::string::npos);
  EXPECT_NE(
      message(R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})").find("uniqueItems"),
      std::string::npos);
  EXPECT_NE(message(R"({"multipleOf": 0.3})").find("multipleOf"), std::string::npos);
  EXPECT_NE(message(R"({"type": "integer", "multipleOf": 1001})").find("multipleOf"), std::string::npos);
  EXPECT_NE(message(R"({"multipleOf": 0})").find("multipleOf"), std::string::npos);
  EXPECT_NE(message(R"({"minProperties": 1})").find("minProperties"), std::string::npos);
  EXPECT_EQ(message(R"({"uniqueItems": false, "multipleOf": 1, "title": "x", "never heard of": 1})"), "");
  EXPECT_NE(message(R"({"prefixItems": [{"type": "null"}], "items": {"const": 1}, "uniqueItems": true})")
                .find("uniqueItems"),
            std::string::npos);
  EXPECT_NE(message(R"({"allOf": [{"prefixItems": [{"type": "string"}]}, {"items": {"type": "integer"}}]})")
                .find("prefixItems"),
            std::string::npos);
  EXPECT_NE(message(R"({"format": "iri"})").find("iri"), std::string::npos);
  EXPECT_NE(message(R"({"$ref": "https://example.org/x"})").find("$ref"), std::string::npos);
  EXPECT_NE(message(R"({"$ref": "#/nowhere"})").find("#/nowhere"), std::string::npos);
  EXPECT_NE(message(R"({"type": "int"})").find("int"), std::string::npos);
  EXPECT_NE(message(R"({"type": "string", "pattern": "(?<=x)*"})").find("pattern"), std::string::npos);
  EXPECT_NE(message(R"({"type": "string", "pattern": "^a$", "maxLength": 3})").find("maxLength"),
            std::string::npos);
  EXPECT_NE(message(R"({"properties": 1})").find("properties"), std::string::npos);
}

// T44: no schema costs more than a moment, whatever it says.
TEST(JsonSchema, T44_HostileSchemasAreRefusedSoon) {
  const auto refused = [](const Json& schema) {
    EXPECT_THROW(json_schema_grammar(schema), Error) << schema.dump().substr(0, 200);
  };
  refused(Json::parse(R"({"$ref": "#"})"));
  refused(Json::parse(R"({"allOf": [{"$ref": "#"}]})"));
  refused(Json::parse(
      R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})"));
  refused(Json::parse(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"));  // no finite value
  for (const char* pattern : {"^+[a-z]$", "(?<=x)*", "(a{1000}){1000}", "((((a{0,99}){0,99}){0,99}){0,99})",
                              "(.*a.{20}|.*b.{20})", "((){9999}){9999}"})
    refused({{"type", "string"}, {"pattern", pattern}});
  refused({{"type", "string"}, {"pattern", std::string(100'000, '(')}});
  refused({{"type", "array"}, {"items", {{"type", "integer"}}}, {"minItems", 1'000'000}});
  Json doubling = {{"$ref", "#/$defs/n20"}, {"$defs", {{"n0", {{"type", "object"}}}}}};
  for (int i = 1; i <= 20; ++i) {
    const Json before = {{"$ref", fmt::format("#/$defs/n{}", i - 1)}};
    doubling["$defs"][fmt::format("n{}", i)] = {{"allOf", {before, before}}};
  }
  refused(doubling);
  Json deep = {{"type", "integer"}};
  for (int i = 0; i < 100; ++i) deep = {{"type", "array"}, {"items", deep}};
  refused(deep);
}

TEST(JsonSchema, RecursionEndsBeforeTheLimitOfDepth) {
  const Grammar grammar = json_schema_grammar(Json::parse(R"({"type": "array", "items": {"$ref": "#"}})"));
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(matches(grammar, nested(Grammar::kMaxDepth)));
  EXPECT_FALSE(matches(grammar, nested(Grammar::kMaxDepth + 2)));
}

const char* const kSampledSchemas[] = {
    "true",
    R"({"type": "object"})",
    R"({"type": "string", "minLength": 2, "maxLength": 5})",
    R"({"type": "array", "items": {"type": ["integer", "string", "null"]}, "minItems": 1, "maxItems": 3})",
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": ["x", "yy", 3]}},
        "c": {"type": "object", "properties": {"d": {"type": "number"}}, "required": ["d"]}}, "required": ["c"]})",
    R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}})",
    R"({"anyOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k", "x"]},
        {"type": "object", "properties": {"k": {"const": "b"}, "y": {"type": "string", "pattern": "^[0-9a-f]{2,4}$"}}, "required": ["k", "y"]}]})",
    R"({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": {"type": "boolean"}})",
    R"({"type": "array", "prefixItems": [{"type": "integer", "exclusiveMinimum": -5, "maximum": 99}, {"type": "string", "maxLength": 1}], "items": {"type": "null"}})",
    R"({"type": "number", "minimum": -7, "exclusiveMaximum": 13})",
    R"({"type": "number", "minimum": -0.75, "exclusiveMaximum": 1.5})",
    R"({"type": "number", "exclusiveMinimum": 9.99, "maximum": 1000})",
    R"({"type": "number", "multipleOf": 0.01, "minimum": 0.5})",
    R"({"type": "integer", "multipleOf": 12, "minimum": -1000})",
    R"({"type": "array", "items": {"enum": ["x", "y", 3, null]}, "uniqueItems": true})",
};

TEST(JsonSchema, RandomTextsOfAGrammarAreValuesOfItsSchema) {
  Random random(1);
  for (const char* source : kSampledSchemas) {
    const Json schema = Json::parse(source);
    const Grammar grammar = json_schema_grammar(schema);
    const JsonValidator validator(schema);
    int count = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string text = random_text(grammar, random, random() % 60);
      if (text.empty()) continue;
      ++count;
      ASSERT_TRUE(Json::accept(text)) << source << "\n" << text;
      EXPECT_TRUE(validator.fits(Json::parse(text))) << source << "\n" << text;
    }
    EXPECT_GT(count, 150) << source;
  }
}

TEST(JsonSchema, RandomMutantsThatFitAreValuesToo) {
  Random random(2);
  int num_rejected = 0;
  for (const char* source : kSampledSchemas) {
    const Json schema = Json::parse(source);
    const Grammar grammar = json_schema_grammar(schema);
    const JsonValidator validator(schema);
    for (int i = 0; i < 300; ++i) {
      const std::string text = mutated(random_text(grammar, random, random() % 40), random);
      const bool is_value = Json::accept(text) && validator.fits(Json::parse(text));
      if (!is_value) {
        ++num_rejected;
        EXPECT_FALSE(matches(grammar, text)) << source << "\n" << text;
      }
    }
  }
  EXPECT_GT(num_rejected, 500);
}

// A value of the schema, written as a model writes it, fits: compact, with blanks, and indented.
TEST(JsonSchema, RandomValuesFitInEachUsualSpelling) {
  Random random(3);
  for (const char* source : kSampledSchemas) {
    const Grammar grammar = json_schema_grammar(Json::parse(source));
    for (int i = 0; i < 100; ++i) {
      const std::string text = random_text(grammar, random, random() % 60);
      if (text.empty()) continue;
      const Json value = Json::parse(text);
      if (value.dump().find_first_of("eE.") != std::string::npos)
        continue;  // numbers are written in other ways
      EXPECT_TRUE(matches(grammar, value.dump(2))) << source << "\n" << text;
    }
  }
}

}  // namespace
}  // namespace longspan::testing
