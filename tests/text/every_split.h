// Feeds a text to a stream parser in many ways: whole, byte by byte, at random places.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::text {

inline std::vector<std::string> pieces_of(std::string_view text, std::vector<size_t> cuts) {
  std::vector<std::string> pieces;
  std::sort(cuts.begin(), cuts.end());
  size_t begin = 0;
  for (const size_t cut : cuts) {
    pieces.emplace_back(text.substr(begin, cut - begin));
    begin = cut;
  }
  pieces.emplace_back(text.substr(begin));
  return pieces;
}

// One way for each: everything at once, bytes, two pieces cut at each place, and `num_random` random ways.
inline std::vector<std::vector<std::string>> every_split(std::string_view text, int num_random = 50) {
  std::vector<std::vector<std::string>> ways{pieces_of(text, {})};
  std::vector<size_t> all;
  for (size_t at = 1; at < text.size(); ++at) {
    all.push_back(at);
    ways.push_back(pieces_of(text, {at}));
  }
  ways.push_back(pieces_of(text, all));
  std::mt19937 random(1);
  for (int i = 0; i < num_random; ++i) {
    std::vector<size_t> cuts;
    for (const size_t at : all)
      if (random() % 4 == 0) cuts.push_back(at);
    ways.push_back(pieces_of(text, cuts));
  }
  return ways;
}

}  // namespace longspan::text
