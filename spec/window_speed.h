// How fast drafts in windows of w tokens are, if every drafted token is kept with probability p: SpecActor's model
// (section 4.1), where D is a level of the draft and V the verification of a window.
//
//   coupled     (1 - p^(w+1)) / (1 - p) tokens in w D + V: draft, verify, and the target's own token behind what it keeps
//   decoupled   drafter and verifier work at once; a wrong token costs the windows behind it. Between two wrong tokens k = p^w / (1 - p^w)
//               windows are kept whole, each in max(w D, V), and the one that is not takes w D + V:
//                 (k w + E[a + 1 | a < w]) / (w D + V + k max(w D, V))
//   in a batch  passes of the verifier follow each other for the sake of others, so that a request that was wrong misses whole ones:
//               (ceil(w D / V) + 1) V in the place of w D + V. A third slower at p = 0.5 (tests/sched/simulator_test.cpp). A drafter that
//               works for several verifiers is in the middle of a level when a verdict comes, and their passes follow each other only as
//               long as anybody's window is there (WindowTimes): the mean of ceil((w + u) D / V) over u from 0 to 1, with chance `busy`.
//               So the simulator is within 6 % of seven verifiers with one drafter, token by token; without, 36 % below to 27 % above. Where
//               requests of one verifier differ much it is up to 12 % below
//   paper's     sum over a < w of p^a (1 - p) (a + 1) / 2, + w p^w, over max(w D, V): the half stands for what is thrown away. It is off by
//               -47 to +27 % of what the protocol in sched/window.h does, and prefers the wrong mode on a sixth of a grid
//               (tests/sched/window_test.cpp)
//
// Windows are tested while w <= bound(w) (algorithm 1): max(ceil(V_w' / D'), ceil(beta_w / alpha)), from the lines D(b) = D' b
// + alpha and V_w(b) = V_w' b + beta_w through two batches.
//
// Thread safety: pure functions and values.
#pragma once

#include <cstdint>

#include "spec/cost_model.h"

namespace otr {

enum class WindowForm { kCoupled, kDecoupled, kDecoupledInBatch, kPaperDecoupled };

// What a request sees that shares its verifier with others.
inline WindowForm form_in(WindowForm form, double batch) {
  return form == WindowForm::kDecoupled && batch > 1 ? WindowForm::kDecoupledInBatch : form;
}

// Milliseconds of one level of the draft and of one window's verification, for all samples together.
struct WindowTimes {
  double draft_ms = 0, verify_ms = 0;
  double level =
      0;  // of a level that is under way for others when a verdict comes, what is still to go at most; 0: there are none
  double busy = 1;  // the chance that others' verification is under way when a window comes, in a batch
};

// From a verdict that asks for a new window to the verification that takes it: at the end of the level that is under way it is
// drafted, and with chance `busy` it waits for the end of a pass. On average.
double window_wait_ms(int32_t window, const WindowTimes& times, double busy);

// Tokens of a sample and verification.
double coupled_tokens(double p, int32_t window);
// Tokens a millisecond of a sample. REQUIRES: window >= 1, 0 <= p <= 1
double window_speed(WindowForm form, double p, int32_t window, const WindowTimes& times);

// What drafting and verifying cost. A drafter without a model looks up for nothing.
struct WindowCosts {
  const CostModel* verify = nullptr;  // of the configuration that verifies
  const CostModel* draft = nullptr;   // of one drafter; null: without a model
  double drafters = 1;                // among which the batch is divided
  double context = 0;

  double draft_ms(double batch) const;
  // The last token of a sample and its window; decoupled the next window brings the row behind its last token.
  double verify_ms(WindowForm form, int32_t window, double batch) const {
    return verify->verify_ms(batch, (window + (form == WindowForm::kCoupled ? 1 : 0)) * batch, context);
  }
  WindowTimes times(WindowForm form, int32_t window, double batch) const {
    return {draft_ms(batch), verify_ms(form, window, batch)};
  }
  // The lines go through b = 1 and b = `line`. At least 1, at most `most`.
  int32_t bound(WindowForm form, int32_t window, double line, int32_t most) const;
};

struct WindowChoice {
  int32_t window = 0;
  double speed = 0;  // tokens a millisecond of a sample
};
// The fastest window for `batch` samples by form_in(form, batch), at most `most` and within its bound; the smaller one where
// two are equal.
WindowChoice best_window(WindowForm form, double p, const WindowCosts& costs, double batch, double line, int32_t most);

}  // namespace otr
