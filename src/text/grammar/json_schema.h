// JsonSchemaRules: from a JSON schema to the rules of a grammar whose texts are JSON values of that schema.
//
// Obeyed: type (also lists), properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, enum, const, anyOf, oneOf (as anyOf), allOf and $ref beside other keywords (where the parts can
// be joined), $ref within the document, also to itself, minLength, maxLength, pattern, format (date, time,
// date-time, duration, uuid, ipv4, ipv6, hostname, email, uri with a host), minimum and maximum and their
// exclusive forms, multipleOf (whole, to 1000, and 0.1 to 0.000001), uniqueItems (of at most 8 listed
// values), nullable. Refused by name: every other keyword and format of JSON Schema that restricts values.
// Unknown ones mean nothing.
//
// The texts are a part of what the schema allows, never more:
//   - properties come in the order of the schema; a schema with properties is closed unless
//     additionalProperties says otherwise, and then further ones come last;
//   - a keyword that only concerns one type, without `type`, implies that type;
//   - integers have at most 18 digits and numbers 16 + 16 and a small exponent, so that readers keep them;
//   - between tokens stands nothing, a blank, or a line end with indentation.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_flattener.h"
#include "text/grammar/text_rules.h"

namespace longspan::text {

// Rules of one document. Borrows all three; the document stays as it is.
class JsonSchemaRules final {
 public:
  JsonSchemaRules(GrammarBuilder& builder, TextRules& rules, const SchemaJson& root,
                  Refused refused = Refused::kThrow)
      : builder_(builder), rules_(rules), flattener_(root, refused) {}

  // The rule of a part of the document. Throws kUnsupported or kInvalid, naming keyword and place.
  NodeId value(const SchemaJson& schema, const std::string& place = "#");
  // Any JSON value; any JSON object.
  NodeId any_value();
  NodeId any_object();
  // Values of one type, whatever the schema says beside `type`.
  NodeId value_of_type(const SchemaJson& flat, const std::string& type, const std::string& place);
  SchemaFlattener& flattener() { return flattener_; }

  // A string's `pattern` or `format`, if it has one.
  static std::optional<Regex> regex_of(const SchemaJson& flat, const std::string& place);
  struct Bounds {
    int32_t min = 0;
    int32_t max = Grammar::kUnlimited;
  };
  static Bounds bounds_of(const SchemaJson& flat, const char* min, const char* max, const std::string& place);

 private:
  struct Property {
    std::string name;
    NodeId rule;
    bool required;
  };
  // What multipleOf asks for.
  struct Divisor {
    int64_t whole = 1;                 // of integers
    std::optional<int> decimals = {};  // behind the point of a number; 0: integers; none: any
  };

  NodeId reference(const std::string& reference, const std::string& place);
  NodeId alternatives(SchemaJson flat, const char* keyword, const std::string& place);
  NodeId listed_values(const SchemaJson& flat, const std::string& place);
  static std::set<std::string> listed_texts(const SchemaJson& flat, const std::string& place);
  NodeId string(const SchemaJson& flat, const std::string& place);
  NodeId integer(const SchemaJson& flat, const std::string& place);
  NodeId number(const SchemaJson& flat, const std::string& place);
  NodeId number_text(const std::string& regex);
  NodeId array(const SchemaJson& flat, const std::string& place);
  NodeId object(const SchemaJson& flat, const std::string& place);
  std::vector<Property> properties_of(const SchemaJson& flat, const std::string& place);
  // The rule of properties that are not listed; kNoNode: there are none.
  NodeId additional_of(const SchemaJson& flat, const std::string& place);
  NodeId object_of(const std::vector<Property>& properties, NodeId additional);
  NodeId array_of(const std::vector<NodeId>& first, NodeId rest, Bounds bounds);
  // The items of `flat`, where they are listed and few: no item twice. None: that is not asked for.
  std::optional<NodeId> array_without_repeats(const SchemaJson& flat, Bounds bounds,
                                              const std::string& place);
  Divisor divisor_of(const SchemaJson& flat, const std::string& place) const;

  GrammarBuilder& builder_;
  TextRules& rules_;
  SchemaFlattener flattener_;
  std::map<std::string, NodeId> references_;
  std::map<std::string, NodeId> numbers_;  // by regular expression
  NodeId any_value_ = kNoNode;
  int depth_ = 0;
  size_t num_schemas_ = 0;
};

// Throws like JsonSchemaRules::value.
Grammar json_schema_grammar(const SchemaJson& schema);
Grammar json_object_grammar();

}  // namespace longspan::text
