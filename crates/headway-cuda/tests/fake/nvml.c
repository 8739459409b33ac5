/*
 * NVML: two GPUs, the first with three links of which the second is down. What their PCIe links carry grows by
 * FAKE_NVML_SENT and FAKE_NVML_RECEIVED bytes a microsecond.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { char legacy[16]; unsigned numbers[5]; char address[32]; } Pci;
static void *handles[2] = {(void *)1, (void *)2};
int nvmlInit_v2(void) {
#ifdef NVML_INIT
	return NVML_INIT;
#else
	return 0;
#endif
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { snprintf(text, bytes, "0.fake"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = handles[index]; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { *handle = handles[!strcmp(uuid, "GPU-1")]; return strcmp(uuid, "GPU-2") ? 0 : 6; }
typedef struct { unsigned field, scope; long long timestamp, latency; int kind, code; unsigned long long value; } FieldValue;
int fake_nvml_readings; /* of the counters */
static unsigned carried(const char *rate) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	const char *text = getenv(rate);
	/* About to wrap. */
	return 0xfffffff0u + (unsigned)((text ? strtoull(text, 0, 10) : 0) * ((unsigned long long)now.tv_sec * 1000000 + now.tv_nsec / 1000));
}
int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
	__atomic_fetch_add(&fake_nvml_readings, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < count; i++) {
		values[i].code = handle != handles[0] || values[i].field < 197 || values[i].field > 198 ? 3 : 0;
		values[i].value = carried(values[i].field == 197 ? "FAKE_NVML_SENT" : "FAKE_NVML_RECEIVED");
	}
	return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned bytes) { snprintf(text, bytes, "fake %d", handle != handles[0]); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned bytes) { snprintf(text, bytes, "GPU-%d", handle != handles[0]); return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { snprintf(pci->address, 32, "00000000:0%c:00.0", handle == handles[0] ? 'A' : 'B'); return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) { *value = 1; return handle == handles[0] ? 0 : 3; }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { (void)handle; *value = 16; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) { (void)handle; *value = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value) { (void)handle; *value = 16; return 0; }
int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { *mode = 3; return handle == handles[0] ? 0 : 3; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) { *active = link != 1; return handle != handles[0] ? 3 : link < 3 ? 0 : 2; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) { (void)handle; snprintf(pci->address, 32, "00000000:0B:00.0"); return link == 2 ? 3 : 0; }
