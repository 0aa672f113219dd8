// Which mixers an architecture has. Adding a model = one line here, one file beside it.
#include <array>

#include "model/model.h"

namespace longspan::model {
namespace {

struct Entry {
  io::Architecture architecture;
  MixerLoader load_mixer;
};

constexpr std::array kRegistry = {
    Entry{io::Architecture::kQwen3_5, load_hybrid_mixer},
    Entry{io::Architecture::kQwen3, load_dense_mixer},
    Entry{io::Architecture::kQwen2, load_dense_mixer},
};

}  // namespace

MixerLoader mixer_loader(const io::ModelConfig& config) {
  for (const Entry& entry : kRegistry)
    if (entry.architecture == config.architecture) return entry.load_mixer;
  fail(ErrorKind::kUnsupported, "no loader for architecture {}", config.architecture_name);
}

}  // namespace longspan::model
