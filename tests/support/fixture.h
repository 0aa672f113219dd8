// Reference fixtures (tests/fixtures/README.md): a model directory and what transformers computed with it in
// float32.
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/tensor_store.h"

namespace longspan::testing {

// Whether cases that take minutes run: scripts/test --long.
inline bool long_tests() { return std::getenv("LONGSPAN_LONG_TESTS") != nullptr; }

inline std::filesystem::path source_dir() { return LONGSPAN_SOURCE_DIR; }
inline std::filesystem::path fixture_dir(const std::string& name) {
  return source_dir() / "tests/fixtures" / name;
}
// The fixture of the bundled model keeps its weights under models/.
inline std::filesystem::path model_dir(const std::string& fixture) {
  return fixture == "tiny" ? source_dir() / "models/longspan-tiny" : fixture_dir(fixture);
}

// One reference prompt.
struct ReferenceCase {
  std::vector<int32_t> prompt;
  std::vector<std::vector<float>> last_logits;  // of the last min(n, 4) positions
  std::vector<int32_t> greedy_ids;              // without regard to eos
  std::vector<float> greedy_gap;                // top-1 minus top-2 at each of them
};

class Reference {
 public:
  explicit Reference(const std::string& fixture) : store_(fixture_dir(fixture) / "reference.safetensors") {}

  int num_cases() const {
    int count = 0;
    while (store_.contains("prompt_ids." + std::to_string(count))) ++count;
    return count;
  }
  ReferenceCase at(int index) const {
    const auto name = [&](const char* what) { return std::string(what) + "." + std::to_string(index); };
    return {.prompt = vector_of<int32_t>(name("prompt_ids")),
            .last_logits = rows(name("logits")),
            .greedy_ids = vector_of<int32_t>(name("greedy_ids")),
            .greedy_gap = vector_of<float>(name("greedy_gap"))};
  }
  // Hidden rows after layer k of case 1 (k = 0: embeddings); empty where the fixture has none.
  std::vector<std::vector<float>> hidden(int k) const {
    const std::string name = "hidden.1." + std::to_string(k);
    return store_.contains(name) ? rows(name) : std::vector<std::vector<float>>();
  }

 private:
  template <class T>
  std::vector<T> vector_of(const std::string& name) const {
    const TensorView view = store_.view(name);
    return {view.as<T>(), view.as<T>() + view.num_elements()};
  }
  std::vector<std::vector<float>> rows(const std::string& name) const {
    const TensorView view = store_.view(name);
    std::vector<std::vector<float>> out;
    for (Index i = 0; i < view.dim(0); ++i) {
      const float* row = view.as<float>() + i * view.stride(0);
      out.emplace_back(row, row + view.dim(1));
    }
    return out;
  }

  io::TensorStore store_;
};

inline std::vector<float> to_floats(const TensorView& row) {
  std::vector<float> out(static_cast<size_t>(row.num_elements()));
  dispatch_dtype(row.dtype, [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(row.as<T>()[i]);
  });
  return out;
}

// ||got - want|| / ||want|| over all rows.
inline double relative_l2(const std::vector<std::vector<float>>& got,
                          const std::vector<std::vector<float>>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i)
    for (size_t j = 0; j < want[i].size(); ++j) {
      const double d = static_cast<double>(got[i][j]) - want[i][j];
      difference += d * d;
      norm += static_cast<double>(want[i][j]) * want[i][j];
    }
  return std::sqrt(difference / norm);
}

// A whole answer and what was seen on the way.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> prompt_logits;  // of the last `keep` positions
  engine::ResponseUpdate last;
};

inline Answer collect(engine::Response& response) {
  Answer answer;
  do {
    answer.last = response.wait(std::chrono::minutes(10));
    for (const engine::TokenOutput& token : answer.last.tokens) answer.ids.push_back(token.token);
  } while (!answer.last.done);
  return answer;
}

// Greedy, past every eos; the logits of the last `keep` prompt positions come along.
inline Answer generate(engine::Engine& engine, const std::vector<int32_t>& prompt, int64_t max_new_tokens,
                       size_t keep = 0) {
  std::vector<std::vector<float>> logits;
  engine::GenerateRequest request{.prompt = prompt, .max_new_tokens = max_new_tokens, .ignore_eos = true};
  const auto first_kept = static_cast<int64_t>(prompt.size()) - static_cast<int64_t>(keep);
  if (keep > 0)
    request.on_prompt_logits = [&](int64_t position, const TensorView& row) {
      if (position >= first_kept) logits.push_back(to_floats(row));
    };
  engine::Response response = engine.submit(std::move(request));
  Answer answer = collect(response);
  answer.prompt_logits = std::move(logits);
  return answer;
}

}  // namespace longspan::testing
