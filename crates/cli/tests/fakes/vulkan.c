// A Vulkan with two devices that only have names.
#include <string.h>
int vkCreateInstance(const void * how, const void * allocator, void ** instance) { (void) how; (void) allocator; *instance = (void *) 1; return 0; }
void vkDestroyInstance(void * instance, const void * allocator) { (void) instance; (void) allocator; }
int vkEnumeratePhysicalDevices(void * instance, unsigned * count, void ** devices) {
    (void) instance;
    for (unsigned i = 0; devices && i < *count; ++i) devices[i] = (void *) (unsigned long) (i + 1);
    *count = 2;
    return 0;
}
void vkGetPhysicalDeviceProperties(void * device, void * properties) {
    strcpy((char *) properties + 20, device == (void *) 1 ? "Fake Radeon" : "llvmpipe");
}
