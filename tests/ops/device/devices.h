// The devices that tests of this build run on: the emulator at wave 32 and 64, or the first card.
#pragma once

#include <gtest/gtest.h>

#include "device/staged_backend.h"
#include "ops/device/backend.h"
#include "ops/reference/backend.h"

namespace longspan::ops::test {

inline bool on_emulator() { return std::string_view(device::vendor_name()) == "emulator"; }

inline std::vector<StagedBackend*> devices() {
  static const std::vector<std::unique_ptr<StagedBackend>> all = [] {
    std::vector<std::unique_ptr<StagedBackend>> list;
    for (int index = 0; index < (on_emulator() ? 2 : 1); ++index)
      list.push_back(std::make_unique<StagedBackend>(device::make_backend(index)));
    return list;
  }();
  std::vector<StagedBackend*> pointers;
  for (const auto& device : all) pointers.push_back(device.get());
  return pointers;
}

inline Backend& reference() {
  static const std::unique_ptr<Backend> backend = reference::make_backend();
  return *backend;
}

}  // namespace longspan::ops::test
