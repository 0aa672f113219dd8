// SchemaFlattener: brings one level of a JSON schema into a form without $ref, allOf and nullable.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace longspan::text {

using SchemaJson = nlohmann::ordered_json;

enum class KeywordUse : uint8_t {
  kAnnotation,  // says nothing about which values fit, or is known to nobody
  kAssertion,   // is obeyed
  kRefused,     // would have to be obeyed, and is not
};
KeywordUse keyword_use(const std::string& name);

// What becomes of a keyword that is not supported.
enum class Refused : uint8_t { kThrow, kDrop };

// One level deeper, as long as it lives.
class Nesting final {
 public:
  explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

// The text that names a place in a schema in errors, as in "#/properties/a".
std::string schema_place(std::string_view parent, std::string_view key);

// Not thread-safe. Borrows the root, in which references are looked up.
class SchemaFlattener final {
 public:
  SchemaFlattener(const SchemaJson& root, Refused refused) : root_(root), refused_(refused) {}

  // Where the schema is a reference and nothing else: to what.
  static std::optional<std::string> plain_reference(const SchemaJson& schema);
  Refused refused() const { return refused_; }
  // What a reference of this document means. Throws kUnsupported for other documents, kInvalid for nothing.
  const SchemaJson& find(const std::string& reference, std::string_view place) const;
  // Throws kUnsupported naming keyword and place for what is refused and for parts of allOf that cannot be
  // joined; kInvalid for what is no schema. `schema` is an object.
  SchemaJson flatten(const SchemaJson& schema, std::string_view place);
  // The same, and of each schema in anyOf and oneOf, too.
  SchemaJson flatten_options(const SchemaJson& schema, std::string_view place);
  // Both at once, under the names of `schema` where an error tells one.
  SchemaJson join(SchemaJson schema, const SchemaJson& other, std::string_view place);

 private:
  void join_keyword(SchemaJson& into, const std::string& name, const SchemaJson& value,
                    std::string_view place);
  void join_properties(SchemaJson& into, const SchemaJson& other);
  void spend(const SchemaJson& copied);

  const SchemaJson& root_;
  Refused refused_;
  int depth_ = 0;
  size_t num_copied_ = 0;
};

}  // namespace longspan::text
