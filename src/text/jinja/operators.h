// Python's operators on values. Integers are 64 bits; what does not fit is an Error, never a wrong number.
#pragma once

#include <optional>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace longspan::text::jinja {

// Throws kInvalid, with the name, for what is undefined.
void require_defined(const Value& value);

// Everything but `and` and `or`, which do not evaluate both sides.
Value apply(BinaryOp op, const Value& a, const Value& b, Budget& budget);
Value apply(UnaryOp op, const Value& a);
bool apply(CompareOp op, const Value& a, const Value& b, Budget& budget);

bool contains(const Value& container, const Value& item, Budget& budget);

// object[key] without the fall-back to attributes: null when there is no such item.
std::optional<Value> find_item(const Value& object, const Value& key);

// object[start:stop:step] of a string or list. Parts that were not given are none.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget);

// Whole numbers for arguments: int or bool. `what` names the argument in the error.
int64_t to_int(const Value& value, std::string_view what);

}  // namespace longspan::text::jinja
