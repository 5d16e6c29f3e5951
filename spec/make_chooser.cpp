#include "spec/make_chooser.h"

#include "spec/auto_chooser.h"
#include "spec/fixed_chooser.h"

namespace otr {

std::unique_ptr<Chooser> make_chooser(const ChooserOptions& options) {
  switch (options.policy.kind) {
    case PolicyKind::kOff: return nullptr;
    case PolicyKind::kAuto: return std::make_unique<AutoChooser>(options);
    case PolicyKind::kFixed: return std::make_unique<FixedChooser>(options.policy);
  }
  return nullptr;
}

}  // namespace otr
