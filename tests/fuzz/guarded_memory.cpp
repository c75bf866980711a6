// Memory of tensors on the CPU, each between two regions that nobody may touch.
//
// A tensor lies directly against the region behind it, or directly against the one before it: whoever goes beyond it
// there ends the process. What is left of its pages on the other side is filled with a pattern, which is held against
// what it was when the memory is given back, or when asked.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace {

constexpr size_t kGuardBytes = size_t(1) << 26;
constexpr size_t kMostBytes = size_t(1) << 28;
constexpr uint8_t kPattern = 0xA5;
// Of elements that nobody has written: as an index it lies far outside.
constexpr uint8_t kUnwritten = 0x7B;

struct Region {
  uint8_t* pages;
  size_t pages_bytes;
  uint8_t* data;
  size_t data_bytes;
};

std::atomic<bool> against_end{true};
std::atomic<uint64_t> changed_patterns{0};
std::mutex mutex;
std::unordered_map<void*, Region>& regions() {
  // Tensors outlive what is destroyed when the process ends.
  static auto* all = new std::unordered_map<void*, Region>;
  return *all;
}

bool is_pattern(const uint8_t* from, const uint8_t* to) {
  for (; from != to; ++from) {
    if (*from != kPattern) {
      return false;
    }
  }
  return true;
}

bool is_whole(const Region& region) {
  return is_pattern(region.pages, region.data) &&
      is_pattern(region.data + region.data_bytes, region.pages + region.pages_bytes);
}

void give_back(void* data) {
  Region region;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = regions().find(data);
    if (found == regions().end()) {
      return;
    }
    region = found->second;
    regions().erase(found);
  }
  if (!is_whole(region)) {
    ++changed_patterns;
  }
  munmap(region.pages - kGuardBytes, region.pages_bytes + 2 * kGuardBytes);
}

struct GuardingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) {
      return {nullptr, nullptr, &give_back, cpu};
    }
    TORCH_CHECK(bytes <= kMostBytes, bytes, " bytes are more than a guarded tensor may take");
    const size_t page = sysconf(_SC_PAGESIZE);
    Region region;
    region.data_bytes = bytes;
    region.pages_bytes = (bytes + page - 1) / page * page;
    void* mapped = mmap(
        nullptr, region.pages_bytes + 2 * kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(mapped != MAP_FAILED, "there is no memory for a guarded tensor");
    region.pages = static_cast<uint8_t*>(mapped) + kGuardBytes;
    const bool is_open = mprotect(region.pages, region.pages_bytes, PROT_READ | PROT_WRITE) == 0;
    TORCH_CHECK(is_open, "there is no memory for a guarded tensor");
    region.data = against_end ? region.pages + region.pages_bytes - bytes : region.pages;
    memset(region.pages, kPattern, region.pages_bytes);
    memset(region.data, kUnwritten, bytes);
    {
      std::lock_guard<std::mutex> lock(mutex);
      regions().emplace(region.data, region);
    }
    return {region.data, region.data, &give_back, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &give_back;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

} // namespace

extern "C" void guard_memory() {
  static auto* allocator = new GuardingAllocator;
  c10::SetCPUAllocator(allocator, 255);
}

extern "C" void lie_against_end(bool is_end) {
  against_end = is_end;
}

// How many patterns are not what they were, those of memory that was given back included.
extern "C" uint64_t count_changed() {
  std::lock_guard<std::mutex> lock(mutex);
  uint64_t count = changed_patterns;
  for (const auto& [_, region] : regions()) {
    count += !is_whole(region);
  }
  return count;
}
