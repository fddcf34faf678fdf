/* host.c — a program in C that loads a plugin, calls it, unloads it, and does so again.

   host PLUGIN FILLER…: loads the fillers before, which use up what the loader has for thread-local variables of a fixed place. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** arguments) {
    if (count < 3) return 2;
    int loaded = 0;
    while (loaded < count - 2 && dlopen(arguments[2 + loaded], RTLD_NOW | RTLD_LOCAL) != NULL) ++loaded;
    if (loaded == count - 2) {
        fprintf(stderr, "host: %d fillers are too few\n", loaded);
        return 1;
    }
    for (int round = 0; round < 3; ++round) {
        void* const plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (plugin == NULL) {
            fprintf(stderr, "host: %s\n", dlerror());
            return 1;
        }
        int (*visit)(int*);
        *(void**)&visit = dlsym(plugin, "visit_nobody");
        int of_rcverbs = 0;
        int const ran = visit(&of_rcverbs);
        printf("round %d: %d handlers ran, %d with an error of the library's\n", round, ran, of_rcverbs);
        if (ran != 3 || of_rcverbs != 3) return 1;
        dlclose(plugin);
    }
    return 0;
}
