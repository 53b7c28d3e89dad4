/* A stand-in for libnvidia-ml.so.1: the GPUs are lines of the file $FAKE_NVML, read again at every query.
 *
 *     gpu UUID NAME UTIL USED_MIB TOTAL_MIB CELSIUS MILLIWATTS     "-": not supported; UTIL "lost", "hang" or "crash" does that
 *     mig UUID GI CI USED_MIB TOTAL_MIB                            an instance of the gpu above it
 *     init CODE                                                    nvmlInit fails with it
 *
 * A GPU whose line has gone is lost for those who hold its handle and unknown to those who count anew.
 * Build: gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 nvml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15, MISMATCH = 18, MOST = 64, WORDS = 8, WORD = 96 };

typedef struct { char word[WORDS][WORD]; int parent; } line; /* parent: line of the whole GPU, -1 for one that is whole */
typedef struct { char uuid[WORD]; } handle;

static handle handles[MOST];
static int known;

static int read_lines(line *lines) {
    const char *name = getenv("FAKE_NVML");
    FILE *file = name ? fopen(name, "r") : NULL;
    char text[1024];
    int n = 0, whole = -1;
    while (file && n < MOST && fgets(text, sizeof text, file)) {
        line *l = &lines[n];
        memset(l, 0, sizeof *l);
        if (sscanf(text, "%95s %95s %95s %95s %95s %95s %95s %95s", l->word[0], l->word[1], l->word[2], l->word[3], l->word[4], l->word[5],
                   l->word[6], l->word[7]) < 1) continue;
        l->parent = strcmp(l->word[0], "mig") ? -1 : whole;
        if (!strcmp(l->word[0], "gpu")) whole = n;
        n++;
    }
    if (file) fclose(file);
    return n;
}
static int is(const line *l, const char *kind) { return !strcmp(l->word[0], kind); }

static int find(const handle *h, line *out) {
    static line lines[MOST];
    int n = read_lines(lines);
    for (int i = 0; i < n; i++)
        if (!is(&lines[i], "init") && !strcmp(lines[i].word[1], h->uuid)) {
            *out = lines[i];
            return is(out, "gpu") && !strcmp(out->word[3], "lost") ? LOST : OK;
        }
    return LOST;
}
static int open_handle(const char *uuid, handle **out) {
    for (int i = 0; i < known; i++)
        if (!strcmp(handles[i].uuid, uuid)) { *out = &handles[i]; return OK; }
    if (known == MOST) return INVALID;
    strcpy(handles[known].uuid, uuid);
    *out = &handles[known++];
    return OK;
}
static int number(const char *word, unsigned *out) {
    if (!strcmp(word, "-")) return NOT_SUPPORTED;
    *out = strtoul(word, NULL, 10);
    return OK;
}
static int text(char *to, unsigned size, const char *from) {
    snprintf(to, size, "%s", from);
    return OK;
}

int nvmlInit_v2(void) {
    static line lines[MOST];
    int n = read_lines(lines);
    for (int i = 0; i < n; i++)
        if (is(&lines[i], "init")) return atoi(lines[i].word[1]);
    return OK;
}
const char *nvmlErrorString(int code) {
    return code == MISMATCH ? "Driver/library version mismatch" : code == NOT_SUPPORTED ? "Not Supported" : code == LOST ? "GPU is lost" : code == 9 ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    static line lines[MOST];
    int n = read_lines(lines);
    *count = 0;
    for (int i = 0; i < n; i++) *count += is(&lines[i], "gpu");
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle **out) {
    static line lines[MOST];
    int n = read_lines(lines);
    for (int i = 0; i < n; i++)
        if (is(&lines[i], "gpu") && !index--) return open_handle(lines[i].word[1], out);
    return INVALID;
}
int nvmlDeviceGetUUID(handle *h, char *to, unsigned size) { return text(to, size, h->uuid); }
int nvmlDeviceGetName(handle *h, char *to, unsigned size) {
    line l;
    int code = find(h, &l);
    return code ? code : text(to, size, is(&l, "gpu") ? l.word[2] : "MIG 1g.10gb");
}

/* One instance after another, with an unused place before each, as real GPUs have them. */
static int instance(handle *h, unsigned place, handle **out) {
    static line lines[MOST];
    int n = read_lines(lines);
    for (int i = 0; i < n; i++)
        if (is(&lines[i], "mig") && lines[i].parent >= 0 && !strcmp(lines[lines[i].parent].word[1], h->uuid)) {
            if (place == 1) return open_handle(lines[i].word[1], out);
            if (place == 0) return NOT_FOUND;
            place -= 2;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetMigMode(handle *h, unsigned *current, unsigned *pending) {
    handle *first;
    if (instance(h, 1, &first)) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle *h, unsigned *count) { (void)h; *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(handle *h, unsigned place, handle **out) { return instance(h, place, out); }
int nvmlDeviceGetGpuInstanceId(handle *h, unsigned *id) {
    line l;
    int code = find(h, &l);
    return code ? code : is(&l, "mig") ? number(l.word[2], id) : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeInstanceId(handle *h, unsigned *id) {
    line l;
    int code = find(h, &l);
    return code ? code : is(&l, "mig") ? number(l.word[3], id) : NOT_SUPPORTED;
}

typedef struct { unsigned long long total, free, used; } memory;
int nvmlDeviceGetMemoryInfo(handle *h, memory *m) {
    line l;
    unsigned used, total;
    int code = find(h, &l);
    if (code) return code;
    if (number(l.word[4], &used) || number(l.word[5], &total)) return NOT_SUPPORTED;
    m->total = (unsigned long long)total << 20, m->used = (unsigned long long)used << 20, m->free = m->total - m->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(handle *h, unsigned *rates) {
    line l;
    int code = find(h, &l);
    if (code) return code;
    if (is(&l, "mig")) return NOT_SUPPORTED;
    if (!strcmp(l.word[3], "hang")) for (;;) sleep(1000);
    if (!strcmp(l.word[3], "crash")) abort();
    rates[1] = 0;
    return number(l.word[3], &rates[0]);
}
int nvmlDeviceGetTemperature(handle *h, int sensor, unsigned *celsius) {
    line l;
    int code = find(h, &l);
    (void)sensor;
    return code ? code : is(&l, "mig") ? NOT_SUPPORTED : number(l.word[6], celsius);
}
int nvmlDeviceGetPowerUsage(handle *h, unsigned *milliwatts) {
    line l;
    int code = find(h, &l);
    return code ? code : is(&l, "mig") ? NOT_SUPPORTED : number(l.word[7], milliwatts);
}
