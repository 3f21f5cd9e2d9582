// NVIDIA's management library as far as detection asks it, over the GPUs that FAKE_NVML describes:
// "GPU-a|GPU-b:MIG-x/1/0,MIG-y/2/0|-": a GPU, one in MIG mode with two compute instances, one that may not be asked.
// FAKE_NVML_INIT is what nvmlInit_v2 returns. Signatures are those of NVIDIA's nvml.h.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

enum Status { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6 };

struct Device {
  std::string uuid;
  bool mig = false;
  unsigned gpu_instance = 0, compute_instance = 0;
  std::vector<Device> instances;
};

int users = 0;
std::vector<Device> devices;
constexpr unsigned kSlots = 7; // of compute instances; those that were not made are asked for, too

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find(by, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Device parsed(const std::string& text) {
  const auto colon = text.find(':');
  Device device{text.substr(0, colon), colon != std::string::npos};
  if (device.mig) {
    for (const auto& entry : split(text.substr(colon + 1), ',')) {
      const auto parts = split(entry, '/');
      device.instances.push_back({parts[0], false, (unsigned)std::stoi(parts[1]), (unsigned)std::stoi(parts[2])});
    }
  }
  return device;
}

} // namespace

extern "C" {

int nvmlInit_v2() {
  const char* status = std::getenv("FAKE_NVML_INIT");
  if (status != nullptr) return std::atoi(status);
  devices.clear();
  const char* text = std::getenv("FAKE_NVML");
  for (const auto& entry : split(text == nullptr ? "" : text, '|')) devices.push_back(parsed(entry));
  ++users;
  return SUCCESS;
}

int nvmlShutdown() {
  if (users == 0) return UNINITIALIZED;
  --users;
  return SUCCESS;
}

int fake_users() { return users; }

const char* nvmlErrorString(int status) {
  return status == 18 ? "Driver/library version mismatch" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (users == 0) return UNINITIALIZED;
  *count = devices.size();
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (index >= devices.size()) return INVALID_ARGUMENT;
  if (devices[index].uuid == "-") return NO_PERMISSION;
  *handle = &devices[index];
  return SUCCESS;
}

int nvmlDeviceGetMigMode(void* handle, unsigned* current, unsigned* pending) {
  const auto* device = static_cast<Device*>(handle);
  if (device->uuid == "GPU-old") return NOT_SUPPORTED;
  *current = *pending = device->mig;
  return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = kSlots;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void* handle, unsigned index, void** instance) {
  auto* device = static_cast<Device*>(handle);
  if (index >= device->instances.size()) return NOT_FOUND;
  *instance = &device->instances[index];
  return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void* handle, unsigned* id) {
  *id = static_cast<Device*>(handle)->gpu_instance;
  return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void* handle, unsigned* id) {
  *id = static_cast<Device*>(handle)->compute_instance;
  return SUCCESS;
}

int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
  std::snprintf(text, length, "%s", static_cast<Device*>(handle)->uuid.c_str());
  return SUCCESS;
}

} // extern "C"
