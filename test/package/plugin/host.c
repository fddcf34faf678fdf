/* host.c — a program in C that loads a plugin, calls it, unloads it, and does so again. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** arguments) {
    if (count != 2) return 2;
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
