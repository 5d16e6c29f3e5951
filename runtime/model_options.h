// What a ModelRunner is made with.
//
// Thread safety: values. What they point to outlives the runner.
#pragma once

#include <cstdint>
#include <string>

#include "graph/forward_program.h"
#include "graph/model_weights.h"
#include "loader/model_config.h"
#include "runtime/kv_room.h"

namespace otr {

class ModelRunner;

// A model whose weights lie in files in memory, for other processes to run too.
struct SharedModel {
  ModelConfig config;
  WeightFiles files;
  int quantized = -1;  // -1: not made
  int64_t converted_tensors = 0;
};

struct ModelOptions {
  std::string path;
  bool in_4_bits = false;    // its program runs the quantised weights: for drafters
  uint64_t kv_bytes = 0;     // of KV pages: see kv_room.h
  int32_t num_pages = 0;     // if not 0, instead of kv_bytes
  int32_t kv_sharers = 1;    // models that have the pages between them, this one included
  int32_t free_sharers = 1;  // of those, the ones on the same device: for kv_bytes of 0
  RoomBeside beside = {};    // that its pages leave to models which come later
  ProgramBucket bucket;
  const ModelRunner* share_logits = nullptr;  // a model of the same vocabulary and no smaller bucket, which runs at other times
  bool shared_memory = false;                 // weights go where other processes can attach them
  // Instead of loading `path`: another process' model; its files stay the caller's. On a device it is copied there.
  const SharedModel* attach = nullptr;
  const ModelRunner* share_weights =
      nullptr;  // instead of loading `path`: another device's runner of it, whose weights it uses
};

}  // namespace otr
