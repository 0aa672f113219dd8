#include "text/text_file.h"

#include <fstream>

#include "core/error.h"
#include "core/units.h"

namespace longspan::text {

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!file || error) fail(ErrorKind::kNotFound, "{}: got no readable file, need one", path.string());
  if (size > kMaxTextFileBytes) {
    fail(ErrorKind::kInvalid, "{}: got {}, need at most {}", path.string(), format_bytes(size),
         format_bytes(kMaxTextFileBytes));
  }
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (static_cast<size_t>(file.gcount()) != size) {
    fail(ErrorKind::kEnvironment, "{}: got {} bytes, need {}", path.string(), file.gcount(), size);
  }
  return text;
}

}  // namespace longspan::text
