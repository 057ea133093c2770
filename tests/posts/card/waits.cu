// How a program waits for a card, and what that costs the processor: interrupts, switches, time.
//
//     nvcc -O2 -arch=sm_90a -o waits tests/posts/card/waits.cu
//     ./waits spin|yield|blocking MICROSECONDS TIMES
//
// Each time one kernel of so many microseconds is started and waited for, as a token's graph is.
// Interrupts are those of the driver's lines in /proc/interrupts.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <time.h>

__global__ void busy(long long nanoseconds) {
    long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

// The sum over processors of all lines that contain a word.
static long long interrupts(const char* of) {
    std::FILE* file = std::fopen("/proc/interrupts", "r");
    if (!file) return -1;
    char line[16384];
    long long sum = 0;
    while (std::fgets(line, sizeof line, file)) {
        if (!std::strstr(line, of)) continue;
        char* at = std::strchr(line, ':');
        for (char* end; at && (at = at + 1, true); at = end - 1) {
            long long number = std::strtoll(at, &end, 10);
            if (end == at) break;
            sum += number;
        }
    }
    std::fclose(file);
    return sum;
}

struct Now {
    double seconds, cpu_seconds;
    long switches, card, timer, calls;
};

static double of(timeval time) { return time.tv_sec + time.tv_usec * 1e-6; }

static Now now() {
    timespec time;
    rusage usage;
    clock_gettime(CLOCK_MONOTONIC, &time);
    getrusage(RUSAGE_SELF, &usage);
    return {time.tv_sec + time.tv_nsec * 1e-9, of(usage.ru_utime) + of(usage.ru_stime), usage.ru_nvcsw,
            (long) interrupts("nvidia"), (long) interrupts("LOC:"), (long) interrupts("CAL:")};
}

int main(int count, char** words) {
    if (count != 4) return std::printf("waits spin|yield|blocking MICROSECONDS TIMES\n"), 2;
    std::string how = words[1];
    unsigned flags = how == "spin" ? cudaDeviceScheduleSpin : how == "yield" ? cudaDeviceScheduleYield : cudaDeviceScheduleBlockingSync;
    long long nanoseconds = std::atoll(words[2]) * 1000;
    int times = std::atoi(words[3]);
    cudaSetDeviceFlags(flags);
    for (int i = 0; i < 100; i++) busy<<<1, 1>>>(nanoseconds), cudaDeviceSynchronize();
    Now before = now();
    for (int i = 0; i < times; i++) busy<<<1, 1>>>(nanoseconds), cudaDeviceSynchronize();
    Now after = now();
    if (cudaError_t error = cudaGetLastError()) return std::printf("%s\n", cudaGetErrorString(error)), 1;
    std::printf("%-8s kernel %lld us: wait %.1f us, processor %.1f us, switches %.3f, interrupts of the card %.3f, of the timer %.3f, calls of processors %.3f\n",
                how.c_str(), nanoseconds / 1000, (after.seconds - before.seconds) / times * 1e6,
                (after.cpu_seconds - before.cpu_seconds) / times * 1e6, (double) (after.switches - before.switches) / times,
                (double) (after.card - before.card) / times, (double) (after.timer - before.timer) / times,
                (double) (after.calls - before.calls) / times);
}
