"""Options of Megatron-LM that no key of a plan stands for: without effect, with one that is told, and refused.

As ``megatron/training/arguments.py`` of Megatron-LM has them (commit 000c4ac2 of 2025, Megatron-Core 0.15), and names
of earlier versions that launch scripts still have, and of Pai-Megatron-Patch.
"""

from __future__ import annotations

from collections.abc import Mapping

from joulecast.simulator.job_files.told import OFFLOADED, by_name

_PASSED_OVER = """
    --data-impl --DDP-impl --override-lr-scheduler --use-checkpoint-lr-scheduler --lr-decay-tokens --lr-warmup-tokens
    --no-pipeline-parallel --no-contiguous-buffers-in-local-ddp
    --use-contiguous-parameters-in-local-ddp --log-optimizer-states-to-tensorboard
    --activations-checkpoint-num-layers --checkpoint-num-layers --inference --train-tokens --partition-activations
    --synchronize-each-layer --keep_fp8_weight_transpose_cache --scattered-embeddings
    --use-mcore-models --max-position-embeddings --rotary-base --rotary-seq-len-interpolation-factor
    --use-rope-scaling --rope-scaling-factor --rotary-interleaved --rotary-scaling-factor --mscale
    --mscale-all-dim --rope-type --norm-epsilon --init-method-std --embedding-init-method-std
    --init-method-xavier-uniform --seed --data-parallel-random-init --use-cpu-initialization --no-initialization
    --init-model-with-meta-device --mtp-loss-scaling-factor --relative-attention-num-buckets
    --relative-attention-max-distance --lr --min-lr --lr-decay-style --lr-decay-iters --lr-decay-samples
    --lr-warmup-fraction --lr-warmup-iters --lr-warmup-samples --lr-warmup-init --lr-wsd-decay-style
    --lr-wsd-decay-samples --lr-wsd-decay-iters --decoupled-lr --decoupled-min-lr --override-opt_param-scheduler
    --override-opt-param-scheduler --use-checkpoint-opt_param-scheduler --use-checkpoint-opt-param-scheduler
    --weight-decay --start-weight-decay --end-weight-decay --weight-decay-incr-style --clip-grad --adam-beta1
    --adam-beta2 --adam-eps --sgd-momentum --loss-scale --initial-loss-scale --min-loss-scale
    --loss-scale-window --hysteresis --fp8-margin --fp8-interval --fp8-amax-history-len --fp8-amax-compute-algo
    --te-rng-tracker --inference-rng-tracker --apply-query-key-layer-scaling --attention-softmax-in-fp32
    --accumulate-allreduce-grads-in-fp32 --calculate-per-token-loss --apply-layernorm-1p
    --disable-bf16-reduced-precision-matmul --no-async-tensor-model-parallel-allreduce
    --no-masked-softmax-fusion --no-persist-layer-norm --transformer-pipeline-model-parallel-size
    --moe-extended-tp --data-path --split --train-data-path --valid-data-path --test-data-path --data-args-path
    --per-split-data-args-path --data-cache-path --no-mmap-bin-files --mock-data --dataloader-type --num-workers
    --reset-position-ids --eod-mask-loss --no-create-attention-mask-in-dataloader --num-dataset-builder-threads
    --object-storage-cache-path --mid-level-dataset-surplus --sample-rate --allow-ambiguous-pad-tokens
    --vocab-file --merge-file --vocab-extra-ids --tokenizer-metadata --tiktoken-pattern
    --tiktoken-num-special-tokens --tiktoken-special-tokens --legacy-tokenizer --trust-remote-code --save
    --save-interval --persistent-save-interval --save-retain-interval --no-save-optim --no-save-rng --load
    --no-load-optim --load-main-params-from-ckpt --no-load-rng --no-strict-fsdp-dtensor-load
    --non-persistent-save-interval --non-persistent-ckpt-type --non-persistent-global-ckpt-dir
    --non-persistent-local-ckpt-dir --non-persistent-local-ckpt-algo --finetune --pretrained-checkpoint
    --ckpt-step --exit-on-missing-checkpoint --use-dist-ckpt --use-persistent-ckpt-worker
    --auto-detect-ckpt-format --dist-ckpt-format --ckpt-format --ckpt-convert-format --ckpt-convert-save
    --ckpt-convert-update-legacy-dist-opt-format --ckpt-fully-parallel-save --no-ckpt-fully-parallel-save
    --async-save --ckpt-fully-parallel-load --ckpt-assume-constant-structure --dist-ckpt-strictness
    --dist-ckpt-save-pre-mcore-014 --dist-ckpt-optim-fully-reshardable
    --distrib-optim-fully-reshardable-mem-efficient --replication --replication-jump --replication-factor
    --no-use-tokenizer-model-from-checkpoint-args --eval-iters --eval-interval --full-validation
    --multiple-validation-sets --test-mode --log-interval --log-params-norm --log-num-zeros-in-grad
    --log-throughput --log-progress --log-energy --log-straggler --disable-straggler-on-startup
    --straggler-ctrlr-port --straggler-minmax-count --timing-log-option --tensorboard-log-interval
    --tensorboard-queue-size --tensorboard-dir --log-timers-to-tensorboard --log-batch-size-to-tensorboard
    --log-learning-rate-to-tensorboard --no-log-learnig-rate-to-tensorboard --no-log-loss-scale-to-tensorboard
    --log-validation-ppl-to-tensorboard --log-memory-to-tensorboard --log-world-size-to-tensorboard
    --log-loss-scale-to-tensorboard --wandb-project --wandb-entity --wandb-exp-name --wandb-save-dir
    --logging-level --no-barrier-with-level-1-timing --moe-per-layer-logging --config-logger-dir
    --run-workload-inspector-server --record-memory-history --memory-snapshot-path --profile
    --profile-step-start --profile-step-end --use-pytorch-profiler --profile-ranks --exit-interval
    --exit-duration-in-mins --exit-signal-handler --iterations-to-skip --result-rejected-tracker-filename
    --distributed-timeout-minutes --distributed-timeout-seconds-after-init --distributed-backend --local-rank
    --local_rank --lazy-mpu-init --disable-gloo-process-groups --nccl-communicator-config-path
    --pipeline-model-parallel-comm-backend --tp-comm-bootstrap-backend --enable-ft-package --calc-ft-timeouts
    --adlr-autoresume --adlr-autoresume-interval --disable-msc --no-one-logger --one-logger-project
    --one-logger-run-name --one-logger-async --app-tag-run-name --app-tag-run-version --rerun-mode
    --error-injection-rate --error-injection-type --enable-experimental --manual-gc --manual-gc-interval
    --no-manual-gc-eval --cuda-graph-warmup-steps --no-check-for-nan-in-loss-and-grad --check-for-spiky-loss
    --check-for-large-grads --check-weight-hash-across-dp-replicas-interval
    --no-clone-scatter-output-in-embedding --moe-router-load-balancing-type
    --moe-router-pre-softmax --moe-router-topk-scaling-factor --moe-router-enable-expert-bias
    --moe-router-bias-update-rate --moe-router-padding-for-fp8 --moe-aux-loss-coeff --moe-z-loss-coeff
    --moe-input-jitter-eps --moe-token-drop-policy --moe-apply-probs-on-input
    --moe-enable-deepep --muon-momentum --muon-no-split-qkv --muon-use-nesterov --muon-scale-mode
    --muon-fp32-matmul-prec --muon-num-ns-steps --muon-tp-mode --muon-extra-scale-factor --muon-nesterov
    --muon-coefficient-type --muon-scalar-optimizer --use-layer-wise-param-layout
    --use-torch-optimizer-for-cpu-offload --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads --no-pin-cpu-params
    --optimizer-offload-fraction --dump-param-to-param-group-map --sft-tokenizer-prompt-format --openai-gelu
    --use-te-activation-func --no-align-grad-reduce --no-align-param-gather --align-param-gather
    --align-grad-reduce --ddp-pad-buckets-for-high-nccl-busbw --keep-fp8-transpose-cache
    --no-gradient-reduce-div-fusion --disable-symmetric-registration --fsdp-double-buffer --sharp-enabled-group
    --tp-comm-overlap-cfg --hierarchical-context-parallel-sizes --wgrad-deferral-limit
    --decrease-batch-size-if-needed --fp8-quantizer-factory --fp4-quantizer-factory --recompute-method
    --moe-pad-expert-input-to-capacity --inprocess-restart --inprocess-max-iterations
    --inprocess-monitor-thread-interval --inprocess-monitor-process-interval
    --inprocess-progress-watchdog-interval --inprocess-heartbeat-interval --inprocess-soft-timeout
    --inprocess-hard-timeout --inprocess-heartbeat-timeout --inprocess-barrier-timeout
    --inprocess-completion-timeout --inprocess-last-call-wait --inprocess-termination-grace-time
    --inprocess-granularity --inprocess-active-world-size --inprocess-empty-cuda-cache
    --patch-tokenizer-type --extra-vocab-size --max-padding-length --train-mode --dataset
"""
#: Nothing of these changes what an iteration computes, moves or keeps.
PASSED_OVER = frozenset(_PASSED_OVER.split())

_UNFUSED = "these kernels run fused in the forecast; apart they take longer, by some per cent of small models"
_SMALL = "the forecast takes no account of it; it changes an iteration little"
_WHOLE_OVERLAP = "tensor-parallel communication is forecast overlapped, or not, as a whole"
#: What these change, where a plan cannot say it.
_WARNED: Mapping[str, str] = {
    "--no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion": _UNFUSED,
    (
        "--no-overlap-p2p-communication --overlap-p2p-communication-warmup-flush "
        "--overlap-param-gather-with-optimizer-step --no-scatter-gather-tensors-in-pipeline "
        "--use-ring-exchange-p2p --ddp-reduce-scatter-with-fp32-accumulation "
        "--suggested-communication-unit-size --high-priority-stream-groups --train-sync-interval "
        "--moe-layer-recompute-granularity --use-fused-weighted-squared-relu --glu-linear-offset "
        "--activation-func-clamp-value --apply-residual-connection-post-layernorm"
    ): _SMALL,
    "--no-gradient-accumulation-fusion": "gradients are added by the products in the forecast; adding them apart reads "
    "and writes every gradient once more a micro-batch",
    "--fp32-residual-connection": "the residual stream is forecast in bf16; in fp32 its kernels move twice the bytes",
    "--deepspeed_config --deepspeed-config": "this file is not read; flags say what is forecast",
    "--rampup-batch-size": "the forecast is of the full batch, not of the smaller ones at the beginning",
    "--microbatch-group-size-per-virtual-pipeline-stage": "the forecast groups as many micro-batches as there are "
    "pipeline stages, Megatron's default",
    "--defer-embedding-wgrad-compute": "the head's weight gradients are forecast in their place, not in the bubbles",
    "--delay-wgrad-compute": "weight gradients are forecast in their place, not beside communication of experts",
    "--use-tp-pp-dp-mapping": "ranks are placed with replicas next to each other, Megatron's default; with pipeline "
    "stages there, other communication crosses the network",
    "--ddp-num-buckets": "buckets of gradients have Megatron's default size in the forecast",
    "--use-nccl-ub": "data-parallel communication is forecast on as many SMs as without user buffers",
    "--enable-full-sharding-in-hsdp": "optimizer states are forecast split within a group of replicas, not over all",
    "--torch-fsdp2-no-reshard-after-forward": "parameters are forecast gathered again in the backward",
    "--empty-unused-memory-level": "freeing and allocating memory each iteration is not forecast",
    "--timing-log-level": "levels above 0 put barriers and timers into the iteration, which are not forecast",
    "--moe-shared-expert-overlap": "shared experts are forecast behind, not beside, the exchange of tokens",
    "--moe-use-legacy-grouped-gemm": "products of experts are forecast as Transformer Engine groups them",
    "--no-fp8-wgrad": "weight gradients are forecast in FP8; in bf16 they take up to twice as long",
    "--distribute-saved-activations": "what full recomputation keeps is forecast whole on every tensor-parallel rank",
    "--reuse-grad-buf-for-mxfp8-param-ag": "the buffer that it saves is counted in the memory",
    (
        "--disable-tp-comm-overlap-ag --disable-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad "
        "--disable-tp-comm-bulk-dgrad --disable-tp-comm-bulk-wgrad --disable-tp-comm-split-ag "
        "--disable-tp-comm-split-rs"
    ): _WHOLE_OVERLAP,
    "--reset-attention-mask": "attention is forecast over whole sequences; Transformer Engine's sees them whole, too",
    "--use-legacy-models": "layers are forecast as Megatron-Core and Transformer Engine run them",
    "--fp16-lm-cross-entropy": "the loss is forecast in fp32",
    "--main-params-dtype": "the optimizer's copy of the parameters is forecast in fp32",
    "--num-distributed-optimizer-instances": "optimizer states are forecast split over all replicas, not over a part",
}
WARNED = by_name(_WARNED)

_LAYERS = "its layers are not known: the forecast would be of another model"
#: With these the forecast would be far off.
_REFUSED: Mapping[str, str] = {
    (
        "--hybrid-attention-ratio --hybrid-mlp-ratio --is-hybrid-model "
        "--heterogeneous-layers-config-path --heterogeneous-layers-config-encoded-json --retro-add-retriever "
        "--experimental-attention-variant"
    ): _LAYERS,
    (
        "--optimizer-cpu-offload --cpu-optimizer --checkpoint-in-cpu --cpu-offloading-num-layers "
        "--fine-grained-activation-offloading"
    ): OFFLOADED,
    "--decoder-num-layers --decoder-seq-length": "models with an encoder are not known",
    "--vision-pretraining": "models that see more than text are not known",
    "--softmax-type": "sinks of attention are not known of a model that is written into a plan",
    "--window-size --window-attn-skip-freq": "attention in windows is not known of a model that is written into a plan",
    "--no-rope-freq": "layers without rotary embedding are not known of a model that is written into a plan",
    "--moe-expert-parallel-size": "experts as Megatron-DeepSpeed routes them are not known",
    "--perform-rl-step": "reinforcement learning generates text between iterations, which is not forecast",
    "--skip-train": "nothing is trained",
    "--model-parallel-size": "Megatron itself refuses it; use --tensor-model-parallel-size",
    "--batch-size": "Megatron itself refuses it; use --micro-batch-size",
    "--warmup": "Megatron itself refuses it; use --lr-warmup-fraction",
    "--use-checkpoint-args": "the model's sizes are in a checkpoint, which is not read; write them as flags",
    "--disable-mamba-mem-eff-path": "a scan that keeps what its fused function makes again is not known",
    "--kitchen-config-file --kitchen-recipe-number": "its number formats are not known",
}
REFUSED = by_name(_REFUSED)
