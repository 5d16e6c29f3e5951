// The C ABI where the system has no more memory or threads to give: a status and a text, and an engine that goes on.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/runtime/sanitized.h"
#include "tests/runtime/test_engine.h"

namespace otr {
namespace {

// Lets the process have so much more address space; SIZE_MAX: all it wants.
void allow(size_t more) {
  unsigned long pages = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "re");
  if (f == nullptr || std::fscanf(f, "%lu", &pages) != 1) std::abort();
  std::fclose(f);
  const rlim_t now = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  const rlimit limit = {more == SIZE_MAX ? RLIM_INFINITY : now + more, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
}

// Ends the process, with 0 if all was well.
[[noreturn]] void end(bool good, const char* what) {
  if (!good) std::fprintf(stderr, "%s; last error: %s\n", what, otr_last_error(nullptr));
  std::_Exit(good ? 0 : 1);
}

otr_engine_options options_of(const TinyModel& model) {
  otr_engine_options options;
  otr_engine_options_init(&options, sizeof options);
  options.model_path = model.path().c_str();
  options.num_threads = 1;
  options.kv_bytes = model.kv_bytes(64);
  return options;
}

bool fails_for_lack(const otr_engine_options& options, const char* text) {
  otr_engine* engine = nullptr;
  return otr_engine_create(&options, &engine) == OTR_OUT_OF_MEMORY && engine == nullptr &&
         std::string(otr_last_error(nullptr)).find(text) != std::string::npos;
}

bool rolls_out(const TinyModel& model) { return TestEngine(model).run({Request({1, 2, 3})}).at({0, 0}).error.empty(); }

// The limits are a process's own: every case is a child. Sanitizers need address space without limit.
class AbiResources : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers need address space without limit";
  }
  const TinyModel model_;
};

TEST_F(AbiResources, ARefusedThread) {
  const auto child = [this] {
    otr_engine_options options = options_of(model_);
    options.num_threads = 4096;  // stacks of 8 MB each
    allow(size_t{256} << 20);
    if (!fails_for_lack(options, "refused a thread")) end(false, "a refused thread");
    allow(SIZE_MAX);
    end(rolls_out(model_), "afterwards");
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST_F(AbiResources, NoMemoryForAnEngine) {
  const auto child = [this] {
    otr_engine_options options = options_of(model_);
    options.kv_bytes = uint64_t{1} << 30;
    allow(size_t{128} << 20);
    if (!fails_for_lack(options, "KV pages")) end(false, "no memory for pages");
    allow(SIZE_MAX);
    end(rolls_out(model_), "afterwards");
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

// A million samples of a thousand tokens: nothing of them is queued, and what the engine had goes on.
TEST_F(AbiResources, NoMemoryForARequest) {
  const auto child = [this] {
    const Outputs expected = TestEngine(model_).run({Request({1, 2, 3})});
    const TestEngine engine(model_);
    Request huge({1, 2, 3});
    huge.n = 1 << 20;
    huge.sampling.max_new_tokens = 1000;
    uint64_t group = 0;
    allow(size_t{64} << 20);
    if (engine.try_submit(huge, 1, &group) != OTR_OUT_OF_MEMORY || group != 0) end(false, "no memory for a request");
    const std::string text = otr_last_error(engine.get());
    allow(SIZE_MAX);
    if (text.find("out of memory") == std::string::npos) end(false, "its text");
    if (engine.count("outstanding_samples") != 0) end(false, "something is queued");
    end(difference(expected, engine.run({Request({1, 2, 3})})).empty(), "afterwards");
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace otr
