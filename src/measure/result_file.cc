#include "measure/result_file.h"

#include "core/error.h"
#include "io/json.h"

namespace longspan::measure {

const char* to_string(ResultKind kind) {
  return kind == ResultKind::kKernel ? "kernel" : kind == ResultKind::kProfile ? "profile" : "end_to_end";
}

const char* described(ResultKind kind) {
  return kind == ResultKind::kKernel    ? "a kernel alone"
         : kind == ResultKind::kProfile ? "a bucket inside a profile"
                                        : "end to end";
}

ResultFile parse_result(const std::string& text, const std::string& path) {
  ResultFile file{.path = path,
                  .kind = ResultKind::kEndToEnd,
                  .json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false)};
  if (!file.json.is_object()) fail(ErrorKind::kInvalid, "{}: need a JSON object", path);
  if (!file.json.contains("kind")) {
    if (!file.json.contains("output_throughput"))
      fail(ErrorKind::kInvalid, "{}: no measurement: it has neither \"kind\" nor \"output_throughput\"",
           path);
    return file;
  }
  for (const ResultKind kind : {ResultKind::kKernel, ResultKind::kProfile, ResultKind::kEndToEnd})
    if (file.json["kind"] == to_string(kind)) {
      file.kind = kind;
      return file;
    }
  fail(ErrorKind::kInvalid, "{}: kind: got {}, need kernel, profile or end_to_end", path,
       file.json["kind"].dump());
}

ResultFile read_result(const std::filesystem::path& path) {
  return parse_result(io::read_text_file(path), path.string());
}

}  // namespace longspan::measure
