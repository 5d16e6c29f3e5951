// DraftServer: what a worker does that drafts for others (decoupled speculation): the drafter's half of sched/window.h for each
// request of the workers linked to it, with a model that has keys and values of its own.
//
// A tick drafts one token for every request whose window allows it, with the target's noise, filters and penalties, in one pass
// of the model. So verdicts are seen after every level, and windows of any size run together. Requests take turns where there
// are more than a pass has rows. A request that finds no place for its keys closes its window: its verifier goes on alone.
// Until another request has ended here, or kRestTokens more of its own tokens are known, it is not asked for again, and nothing
// is said of it.
//
// Every `reconfigure_every` ticks window and mode of the requests that do worse than the mean are set anew (algorithm 2),
// if there are costs.
//
// A verifying worker that is lost has its requests ended.
//
// Thread safety: used by the worker's thread. Nothing but a request's arrival allocates. Errors: as ModelDrafter::create.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/draft_link.h"
#include "runtime/draft_stats.h"
#include "runtime/model_drafter.h"
#include "sched/plan.h"
#include "spec/keep_rate.h"

namespace otr {

struct DraftServerOptions {
  TreeDrafterOptions tree;
  DrafterModel model;
  int32_t most = 16;  // the widest window that a reconfiguration may choose
  WindowForm form = WindowForm::kDecoupled;
  std::vector<CostModel> costs;                        // for reconfigurations: one, of the target and of this model; or none
  int64_t reconfigure_every = kReconfigureIterations;  // ticks; 0: never
  double verifiers = 1;                                // that it drafts for
};

class DraftServer {
 public:
  static constexpr int32_t kRestTokens = kQuietTokens;

  // `device` outlives it; `share`: a runner of the model whose weights it uses, or null.
  static Result<std::unique_ptr<DraftServer>> create(const DraftServerOptions& options, Device& device,
                                                     const ModelRunner* share);
  ~DraftServer();

  void add_link(DraftLink* link) { links_.push_back(link); }
  // Of requests that arrive from now on.
  void set(WindowSetting setting) { setting_ = setting; }

  // One round: takes what has come, drafts, sends. False: there was nothing to do.
  bool tick();
  // There is something to do, without anything new coming.
  bool busy() const;

  // Its pages' memory goes; what it is asked for meanwhile it drafts later, from the tokens alone.
  void forget() { drafter_->forget(); }

  DraftStats stats() const;
  const ModelRunner& model() const { return drafter_->model(); }
  ModelRunner& model() { return drafter_->model(); }
  int64_t own_weight_bytes() const { return own_weight_bytes_; }  // 0: they are another's

 private:
  struct Request {
    std::optional<DraftWindow> window;  // none: the slot is free
    int32_t misses = 0;                 // passes in a row without a token for it
    int32_t rests_until = 0;            // tokens known, unless
    int64_t rests_since = 0;            // stats_.ended_requests, which has grown since
  };
  struct Name {
    const DraftLink* link;  // null: the slot is free
    uint64_t name;
    bool operator==(const Name&) const = default;
  };

  explicit DraftServer(const DraftServerOptions& options);
  bool receive();
  bool begin_again(DraftLink* link);
  void start(const DraftLink* link, std::unique_ptr<Sequence> s);
  void judge(int32_t slot, const VerdictMessage& verdict);
  void replace_tokens(int32_t slot, int32_t judged, const VerdictMessage& verdict);
  bool draft();
  bool may_draft(const Request& r) const;
  void add_token(int32_t slot, const Forest& forest);
  bool send();
  void finish(int32_t slot);
  void reconfigure();
  Request& request(int32_t slot) { return requests_[static_cast<size_t>(slot)]; }

  const DraftServerOptions options_;
  WindowSetting setting_;
  std::vector<std::unique_ptr<Sequence>> live_;  // by slot; null where free
  std::vector<Request> requests_;                // likewise
  std::vector<Name> names_;                      // likewise
  std::vector<DraftLink*> links_;
  std::vector<int32_t> free_slots_;
  std::unique_ptr<ModelDrafter> drafter_;
  int64_t own_weight_bytes_ = 0;
  DraftStats stats_;  // without what live requests count themselves
  size_t turn_ = 0;   // the slot that is asked first
  // Of the tick.
  std::vector<DraftRow> rows_;
  std::vector<Forest> forests_;
  std::vector<RequestWindow> windows_;
};

}  // namespace otr
