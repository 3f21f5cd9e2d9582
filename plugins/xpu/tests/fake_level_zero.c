/* Level Zero as far as it is used here, over the devices in FAKE_GPUS: a letter for each, d(iscrete), i(ntegrated),
   n (no GPU); a bar between two drivers. FAKE_ZE_STATUS is what zeInit returns. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  uint32_t stype;
  void* next;
  uint32_t type, vendor, device, flags;
} properties;

static const char* devices(void) {
  const char* given = getenv("FAKE_GPUS");
  return given ? given : "";
}

int zeInit(uint32_t flags) {
  const char* status = getenv("FAKE_ZE_STATUS");
  return flags == 1 ? (int)(status ? strtoul(status, 0, 16) : 0) : 0x78000004;
}

int zeDriverGet(uint32_t* number, void** handles) {
  uint32_t found = 0;
  const char* at = devices();
  if (handles) handles[found] = (void*)at;
  for (found = 1; (at = strchr(at, '|')); ++found)
    if (handles) handles[found] = (void*)(at += 1);
    else at += 1;
  *number = found;
  return 0;
}

int zeDeviceGet(const char* driver, uint32_t* number, void** handles) {
  *number = (uint32_t)strcspn(driver, "|");
  for (uint32_t index = 0; handles && index < *number; ++index) handles[index] = (void*)(driver + index);
  return 0;
}

int zeDeviceGetProperties(const char* device, properties* found) {
  if (found->stype != 3) return 0x78000004;
  found->type = *device == 'n' ? 5 : 1;
  found->vendor = 0x8086;
  found->flags = *device == 'i' ? 1 : 0;
  return 0;
}
