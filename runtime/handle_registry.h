// HandleRegistry: handles that can be checked. What callers hold is an index and a generation in the shape of a pointer, never
// an address: a destroyed or invented handle is found out instead of followed.
//
// Thread safety: every function may be called from any thread. lookup() shares ownership, so an object that another thread
// destroys meanwhile lives until the call that uses it returns.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace otr {

// T: the object; Handle: the opaque C type that stands for it; kKind: tells the handles of one registry from another's.
template <typename T, typename Handle, uintptr_t kKind>
class HandleRegistry {
 public:
  // Room for an object that is still to come: fill() cannot fail. Where it does not come, the room is given back. No handle is
  // valid before.
  class Place {
   public:
    explicit Place(HandleRegistry* registry) : registry_(*registry), index_(registry->reserve()) {}
    ~Place() {
      if (!filled_) registry_.give_back(index_);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Once. REQUIRES: not null.
    Handle* fill(std::shared_ptr<T> object) noexcept {
      filled_ = true;
      return registry_.put(index_, std::move(object));
    }

   private:
    HandleRegistry& registry_;
    const size_t index_;
    bool filled_ = false;
  };

  Handle* insert(std::shared_ptr<T> object) { return Place(this).fill(std::move(object)); }

  std::shared_ptr<T> lookup(const Handle* handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = find(handle);
    return index < slots_.size() ? slots_[index].object : nullptr;
  }

  // Removes the handle and returns its object; null if it is not valid.
  std::shared_ptr<T> take(Handle* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t index = find(handle);
    if (index >= slots_.size()) return nullptr;
    ++slots_[index].generation;
    free_.push_back(index);
    return std::exchange(slots_[index].object, nullptr);
  }

 private:
  struct Slot {
    std::shared_ptr<T> object;  // null: free, or a Place
    uint32_t generation = 1;
  };
  // A handle's bits: generation, kind, index + 1.
  static constexpr int kGenerationShift = 32, kKindShift = 28;
  static constexpr uintptr_t kIndexMask = (uintptr_t{1} << kKindShift) - 1, kKindMask = 0xf;
  static_assert(kKind <= kKindMask);

  size_t reserve() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      free_.reserve(slots_.size() + 1);  // so that neither take() nor give_back() allocates
      slots_.emplace_back();
      return slots_.size() - 1;
    }
    const size_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(size_t index) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(index);
  }
  Handle* put(size_t index, std::shared_ptr<T> object) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    slots_[index].object = std::move(object);
    return encode(index, slots_[index].generation);
  }

  static Handle* encode(size_t index, uint32_t generation) {
    return reinterpret_cast<Handle*>(static_cast<uintptr_t>(generation) << kGenerationShift | kKind << kKindShift |
                                     (index + 1));
  }
  // The slot of a valid handle, else slots_.size(). REQUIRES: mutex_ held.
  size_t find(const Handle* handle) const {
    const uintptr_t value = reinterpret_cast<uintptr_t>(handle);
    const size_t index = static_cast<size_t>(value & kIndexMask) - 1;
    const uint32_t generation = static_cast<uint32_t>(value >> kGenerationShift);
    const bool valid = (value >> kKindShift & kKindMask) == kKind && index < slots_.size() &&
                       slots_[index].generation == generation && slots_[index].object != nullptr;
    return valid ? index : slots_.size();
  }

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;   // guarded by mutex_
  std::vector<size_t> free_;  // guarded by mutex_
};

}  // namespace otr
