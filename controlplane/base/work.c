#include "base/work.h"

#include "base/buf.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>

struct cp_workers {
    cp_loop *loop;
    pthread_mutex_t mu; /* guards all below */
    pthread_cond_t cond;
    cp_work *head, **tail;
    unsigned queued, idle, started, max;
    bool stopping;
    pthread_t threads[];
};

static void post_done(cp_task *t) {
    cp_work *w = CP_CONTAINER(t, cp_work, task);
    w->done(w);
}

static cp_work *next_work(cp_workers *p) {
    pthread_mutex_lock(&p->mu);
    while (!p->head && !p->stopping) {
        p->idle++;
        pthread_cond_wait(&p->cond, &p->mu);
        p->idle--;
    }
    cp_work *w = p->head;
    if (w) {
        p->head = w->next;
        p->queued--;
        if (!p->head) p->tail = &p->head;
    }
    pthread_mutex_unlock(&p->mu);
    return w;
}

static void *worker_main(void *arg) {
    cp_workers *p = arg;
    for (cp_work *w; (w = next_work(p));) {
        w->run(w);
        cp_loop_post(p->loop, &w->task, post_done);
    }
    return NULL;
}

static int start_thread(cp_workers *p) {
    int rc = cp_thread_start(&p->threads[p->started], 256 * 1024, worker_main, p);
    if (rc == 0) p->started++;
    return rc;
}

/* The first thread starts here, where a failure can be told: once the table of processes is full, work that no thread
 * takes would wait for ever. That later ones cannot start only makes the pool smaller. */
cp_workers *cp_workers_new(cp_loop *loop, unsigned threads, cp_err *err) {
    cp_workers *p = cp_alloc(sizeof *p + threads * sizeof(pthread_t));
    p->loop = loop;
    p->max = threads;
    p->tail = &p->head;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->cond, NULL);
    int rc = start_thread(p);
    if (rc == 0) return p;
    cp_workers_free(p);
    cp_fail_sys(err, CP_E_INTERNAL_ERROR, rc, "cannot start a thread");
    return NULL;
}

void cp_workers_submit(cp_workers *p, cp_work *w, void (*run)(cp_work *), void (*done)(cp_work *)) {
    w->run = run;
    w->done = done;
    w->pool = p;
    w->next = NULL;
    pthread_mutex_lock(&p->mu);
    *p->tail = w;
    p->tail = &w->next;
    p->queued++;
    if (p->queued > p->idle && p->started < p->max) start_thread(p);
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mu);
}

void cp_workers_free(cp_workers *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mu);
    p->stopping = true;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->mu);
    for (unsigned i = 0; i < p->started; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->cond);
    free(p);
}
