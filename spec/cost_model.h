// CostModel: how long a pass of the target, one level of a draft and a verification take. It alone knows time.
//
// The calibrated roofline of EfficientRollout (section 3.2, appendix E.3), in milliseconds instead of bytes and operations, so
// that it can be fitted to times without knowing the machine or the model. A pass over `batch` samples, `rows` tokens of them
// together, and `context` cached tokens a sample takes
//
//   time = roof(memory, arithmetic) + pass_ms + sample_ms * batch + context_ms * context + comm_ms
//   memory     = weights_ms * read + kv_ms * batch * context   the weights once, every sample's keys and values
//   read       = 1 - experts * passed_by^rows                  all weights but those of experts that no row takes
//   arithmetic = (rows - silent * logits) * row_ms + (rows * context - masked) * attention_ms
//   roof(m, a) = (m^p + a^p)^(1/p), p = 1 / (1 - overlap)      overlap 1: max(m, a); 0: m + a
//
//   the paper, with its M and C                 here, with overlap 1 and context_ms 0
//   T_p = max(M_T, C) + c_T B                   target, rows = B
//   T_q = max(M_D, C) + c_D B                   draft,  rows = B
//   T_V = max(M_T, (depth + 1) C) + c_V B       verify, rows = (depth + 1) B
//   c_comm, an all-reduce's cost                comm_ms
// `logits`, `experts` and `passed_by` are arithmetic on the model's shape. `silent` rows, of prompts and of what a drafter
// catches up with, want no logits, and lm_head is most of a small model's work: the fit cannot see it, since every pass that is
// timed has all of its rows' logits. Of a mixture of experts each row is taken to choose for itself, all experts alike: of a
// router that prefers some, a pass reads less. `masked` is the context that comes after the tokens that a drafter catches up
// with.
//
// Its parameters are cost_model_from()'s. What is wider here, the paper's own sweeps ask for (COST_MODEL.md): passes between 64
// and 512 rows are slower than either side of a sharp roof, and a verification of one sample takes 2.4 ms longer at 4096 tokens
// of context than at 256, of which reading the cache explains 0.1. SpecActor's V(b) and D(b), affine in the batch, are
// weights_ms + sample_ms * b.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/base/status.h"

namespace otr {

enum class CostRole { kTarget, kDraft, kVerify };
inline constexpr size_t kNumCostRoles = 3;

struct PassShape {
  double batch = 1;    // samples
  double rows = 1;     // tokens of all samples: the batch in plain decoding and a level of chains, more in a verification
  double context = 0;  // cached tokens of a sample; the mean where they differ
  double silent = 0;   // of `rows`, those whose logits nobody wants
  double masked = 0;   // of rows * context, what attention skips: a sample's earlier rows do not see its later tokens
};

// What follows from a model's shape, 0 to 1.
struct ShapeShares {
  double logits = 0;     // of row_ms: what the row's logits take
  double experts = 0;    // of weights_ms: what reading every expert takes; 0: there are none
  double passed_by = 0;  // of a layer's experts, those that a row does not take
};

// Milliseconds, none negative: so time never falls when batch, rows or context grow.
struct RoleCost {
  double weights_ms = 0;    // a pass that reads all of them
  double kv_ms = 0;         // a cached token of a sample
  double row_ms = 0;        // a row: the dense arithmetic
  double attention_ms = 0;  // a row and cached token
  double sample_ms = 0;     // a sample, beside the roof (c_T, c_D, c_V)
  double context_ms = 0;    // a token of context beside the roof, whatever the batch
  double overlap = 1;       // of memory and arithmetic, 0 to 1
  double pass_ms = 0;  // a pass of this role alone, beside the roof: 0 in what is fitted, which cannot tell it from comm_ms
  ShapeShares shares = {};

  // The share of the weights that a pass of so many rows reads.
  double weights_read(double rows) const {
    return shares.experts == 0 ? 1 : 1 - shares.experts * std::pow(shares.passed_by, rows);
  }
  double memory_ms(const PassShape& pass) const {
    return weights_ms * weights_read(pass.rows) + kv_ms * pass.batch * pass.context;
  }
  double arithmetic_ms(const PassShape& pass) const {
    return (pass.rows - shares.logits * pass.silent) * row_ms + (pass.rows * pass.context - pass.masked) * attention_ms;
  }
  double time_ms(const PassShape& pass) const;
};

// The roof's slopes by its two sides. It grows in proportion with them, so roof = memory * memory_ms + arithmetic *
// arithmetic_ms.
struct RoofShares {
  double memory = 1, arithmetic = 0;
};
RoofShares roof_shares(double memory_ms, double arithmetic_ms, double overlap);

struct CostModel {
  std::array<RoleCost, kNumCostRoles> roles;  // by CostRole
  double comm_ms = 0;                         // a pass of any role: communication between devices; 0 on one

  const RoleCost& role(CostRole which) const { return roles[static_cast<size_t>(which)]; }
  double time_ms(CostRole which, const PassShape& pass) const { return role(which).time_ms(pass) + comm_ms; }

  double target_ms(double batch, double context) const { return time_ms(CostRole::kTarget, {batch, batch, context}); }
  // One level of chains. `caught_up`: tokens of all samples that it runs beside them and that come before; more of them never
  // take less.
  double draft_ms(double batch, double context, double caught_up = 0) const;
  // `rows`: of all samples, with the one that each has without a draft; `silent` of them without logits.
  double verify_ms(double batch, double rows, double context, double silent = 0) const {
    return time_ms(CostRole::kVerify, {batch, rows, context, silent});
  }

  // Chains of `depth` against plain decoding, if a verification yields `tokens` a sample (block efficiency): the paper's
  // equation 1.
  double speedup(double batch, double context, double depth, double tokens) const;
};

// The paper's parameters, in bytes, operations and seconds.
struct RooflineConstants {
  double target_bytes = 0, draft_bytes = 0;        // W_T, W_D
  double draft_factor = 1;                         // eta_D: what reading W4 weights costs beyond their bytes
  double kv_bytes = 0;                             // kappa_eff: a cached token's bytes times the KV-traffic factor
  double dense_flops = 0, attention_flops = 0;     // C_dense of a row, C_attn of a row and cached token
  double bandwidth = 0, compute = 0;               // BW_eff, F_eff, a second
  double target_s = 0, draft_s = 0, verify_s = 0;  // c_T, c_D, c_V of a sample
  double comm_s = 0;                               // c_comm of a pass
};

// kInvalidArgument if a number is negative or not finite, or bandwidth or compute is 0.
Result<CostModel> cost_model_from(const RooflineConstants& constants);

}  // namespace otr
