// ServerFacts: what /v1/longspan/status of a running server says about itself.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::measure {

struct ServerFacts {
  std::string base_url;
  std::string model;
  std::string device;
  std::string version;
  // Its program.
  std::string path;
  std::string hash;
  int64_t pid = 0;
  int64_t started_unix_seconds = 0;
  struct Setting {
    std::string key;
    std::string value;
    std::string source;
  };
  std::vector<Setting> settings;
  // Its page plan.
  int64_t page_tokens = 0;
  int64_t alignment = 0;
  std::string layout;
  bool prefix_caching = false;
  std::vector<std::string> derivation;
  // How often each attention path was taken, and why vendor_prefill was not.
  std::map<std::string, int64_t> hits;
  std::map<std::string, int64_t> vendor_prefill_misses;

  const Setting* setting(std::string_view key) const;  // null where it says nothing of it
};

// Throws kInvalid where the text is no status of a Longspan server.
ServerFacts server_facts(std::string_view status_json, const std::string& base_url);
// Asks the server. Throws kEnvironment, kInvalid.
ServerFacts fetch_server_facts(const std::string& base_url, const std::string& api_key);

}  // namespace longspan::measure
