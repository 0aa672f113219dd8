#include "server/chat_prompt.h"

#include <algorithm>
#include <charconv>

#include "text/reasoning_parser.h"

namespace longspan::server {
namespace {

// A special token in a user's text travels through the template as MARK number MARK. The mark is a
// private-use character that no template knows; in a user's own text it stands for itself, or at worst for
// the plain text of a special token.
constexpr std::string_view kMark = "\xEF\xA3\xBE";  // U+F8FE
constexpr size_t kMaxDigits = 6;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

struct Mark {
  size_t end;    // bytes of the text, behind the second mark
  size_t index;  // the number between the marks
};

std::optional<Mark> mark_at(std::string_view text, size_t begin) {
  const char* digits = text.data() + begin + kMark.size();
  const char* limit = std::min(digits + kMaxDigits, text.data() + text.size());
  Mark mark{};
  const auto [rest, status] = std::from_chars(digits, limit, mark.index);
  const auto at = static_cast<size_t>(rest - text.data());
  if (status != std::errc() || text.substr(at, kMark.size()) != kMark) return std::nullopt;
  mark.end = at + kMark.size();
  return mark;
}

}  // namespace

ChatPrompter::ChatPrompter(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template)
    : tokenizer_(tokenizer), template_(chat_template) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id)) special_tokens_.emplace_back(tokenizer.token_bytes(id));
  std::erase(special_tokens_, "");
  std::sort(special_tokens_.begin(), special_tokens_.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
}

ChatPrompt ChatPrompter::build(Json request) const {
  for (const char* part : {"messages", "tools"})
    if (request.contains(part)) hide_special_tokens(request[part]);
  ChatPrompt prompt{.text = template_.render(request)};
  prompt.ids = encode(prompt.text);
  prompt.opens_reasoning = text::opens_reasoning(prompt.text);
  return prompt;
}

void ChatPrompter::hide_special_tokens(Json& json) const {
  if (json.is_string()) {
    auto& text = json.get_ref<std::string&>();
    for (size_t i = 0; i < special_tokens_.size(); ++i)
      replace_all(text, special_tokens_[i], fmt::format("{}{}{}", kMark, i, kMark));
  } else if (json.is_structured()) {
    for (Json& element : json) hide_special_tokens(element);
  }
}

// The ids of `rendered`, in which marks are replaced by what they stand for.
std::vector<int32_t> ChatPrompter::encode(std::string& rendered) const {
  if (rendered.find(kMark) == std::string::npos)
    return tokenizer_.encode(rendered, text::SpecialTokens::kParse);
  std::vector<int32_t> ids;
  std::string plain;
  const auto add = [&](std::string_view stretch, text::SpecialTokens policy) {
    const std::vector<int32_t> more = tokenizer_.encode(stretch, policy);
    ids.insert(ids.end(), more.begin(), more.end());
    plain += stretch;
  };
  size_t begin = 0;  // of what is not encoded yet
  for (size_t at = rendered.find(kMark); at != std::string::npos; at = rendered.find(kMark, at)) {
    const auto mark = mark_at(rendered, at);
    if (!mark || mark->index >= special_tokens_.size()) {
      at += kMark.size();
      continue;
    }
    add(std::string_view(rendered).substr(begin, at - begin), text::SpecialTokens::kParse);
    add(special_tokens_[mark->index], text::SpecialTokens::kAsText);
    at = begin = mark->end;
  }
  add(std::string_view(rendered).substr(begin), text::SpecialTokens::kParse);
  rendered = std::move(plain);
  return ids;
}

std::vector<int32_t> system_prefix(const ChatPrompter& prompter, const std::string& text) {
  const auto ids_before = [&](const char* question) {
    return prompter
        .build({{"messages",
                 {{{"role", "system"}, {"content", text}}, {{"role", "user"}, {"content", question}}}},
                {"add_generation_prompt", true}})
        .ids;
  };
  std::vector<int32_t> ids = ids_before("a");
  const std::vector<int32_t> others = ids_before("1");
  ids.erase(std::ranges::mismatch(ids, others).in1, ids.end());
  return ids;
}

}  // namespace longspan::server
