#include "spec/make_chooser.h"

#include "spec/auto_chooser.h"
#include "spec/efficientrollout_chooser.h"
#include "spec/fixed_chooser.h"
#include "spec/rhymerl_chooser.h"
#include "spec/specactor_chooser.h"
#include "spec/tlt_chooser.h"

namespace otr {

std::unique_ptr<Chooser> make_chooser(const ChooserOptions& options) {
  switch (options.policy.kind) {
    case PolicyKind::kOff: return nullptr;
    case PolicyKind::kAuto: return std::make_unique<AutoChooser>(options);
    case PolicyKind::kFixed: return std::make_unique<FixedChooser>(options.policy);
    case PolicyKind::kSpecactor: return std::make_unique<SpecactorChooser>(options);
    case PolicyKind::kRhymerl: return std::make_unique<RhymerlChooser>(options);
    case PolicyKind::kTlt: return std::make_unique<TltChooser>(options);
    case PolicyKind::kEfficientrollout: return std::make_unique<EfficientrolloutChooser>(options);
  }
  return nullptr;
}

}  // namespace otr
