// ResultFile: a saved measurement and what kind of number it holds. The three kinds never stand in for one
// another: a kernel twice as fast is no service twice as fast.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace longspan::measure {

enum class ResultKind : uint8_t {
  kKernel,    // an operation alone
  kProfile,   // a class of operations inside a profile of real requests
  kEndToEnd,  // requests, as a client sees them
};
const char* to_string(ResultKind kind);  // "kernel", "profile", "end_to_end": the file's "kind"
const char* described(ResultKind kind);  // "a kernel alone", "a bucket inside a profile", "end to end"

struct ResultFile {
  std::string path;
  ResultKind kind = ResultKind::kEndToEnd;
  nlohmann::ordered_json json;
};

// Throws kNotFound, kInvalid: no JSON object, or none of the kinds. Results of vLLM's serving benchmark have
// no kind and are taken as end to end.
ResultFile parse_result(const std::string& text, const std::string& path);
ResultFile read_result(const std::filesystem::path& path);

}  // namespace longspan::measure
