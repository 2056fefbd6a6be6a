"""The words of the scene bank: things, people, animals, what they do and where. All written for this project."""


def phrases(text: str) -> tuple[str, ...]:
    """The comma-separated phrases of a block of text, in order, each once. Raises ValueError for a repeated one."""
    found = [" ".join(phrase.split()) for phrase in text.split(",") if phrase.strip()]
    repeated = sorted({phrase for phrase in found if found.count(phrase) > 1})
    if repeated:
        raise ValueError(f"phrases written twice: {repeated}; remove one of each")
    return tuple(found)


PEOPLE = phrases("""
man, woman, boy, girl, baby, toddler, child, teenager, young woman, young man, old man, elderly woman, little girl,
little boy, businessman, businesswoman, doctor, nurse, chef, waiter, waitress, farmer, soldier, police officer,
firefighter, teacher, student, construction worker, mechanic, carpenter, painter, dancer, ballerina, singer,
guitarist, drummer, football player, basketball player, tennis player, baseball player, golfer, skier, snowboarder,
surfer, skateboarder, swimmer, runner, cyclist, fisherman, sailor, pilot, bride, groom, mother, father, grandmother,
grandfather, cowboy, clown, monk, priest, tourist, hiker, photographer, artist, hairdresser, shopkeeper, gardener,
lifeguard, boxer, gymnast, model, actress, actor, politician, scientist, bearded man, pregnant woman, asian woman,
blonde woman, african woman, bald man, woman in a hat, man in a suit, woman in a red dress, woman with long hair, boy
in a blue shirt, man with glasses, girl in pink dress, woman in white, man wearing a helmet
""")
GROUPS = phrases("""
people, a group of people, a crowd, children, kids, two women, two men, two girls, two boys, a couple, a young couple,
an elderly couple, a family, friends, a mother and her baby, a father and son, a bride and groom, students, soldiers,
businesspeople, tourists, players, cyclists, fans, three friends, women, men, firefighters, workers, dancers,
musicians
""")
DEEDS = phrases("""
sitting, standing, smiling, walking, running, jumping, sleeping, dancing, laughing, talking, eating, drinking coffee,
reading a book, riding a bicycle, riding a horse, riding a motorcycle, driving a car, playing guitar, playing the
piano, playing football, playing tennis, playing with a dog, playing with toys, holding a baby, holding an umbrella,
holding flowers, holding a sign, holding a cup, holding a phone, using a laptop, talking on the phone, taking a photo,
looking at the camera, looking out of the window, wearing a hat, wearing sunglasses, wearing a red shirt, cooking,
cutting vegetables, baking a cake, washing hands, brushing teeth, brushing hair, painting a picture, drawing, writing,
working at a desk, working out, lifting weights, doing yoga, stretching, swimming, surfing, skiing, skateboarding,
fishing, climbing a rock, hiking, camping, hugging, kissing, holding hands, waving, pointing, clapping, singing on
stage, giving a speech, shaking hands, kicking a ball, throwing a ball, swinging a bat, carrying a bag, carrying a
box, pushing a cart, pushing a stroller, waiting for a bus, crossing the street, walking the dog, feeding birds,
picking flowers, planting a tree, watering plants, mowing the lawn, shovelling snow, building a sandcastle, flying a
kite, blowing out candles, opening a present, decorating a christmas tree, eating ice cream, eating pizza, eating an
apple, drinking beer, drinking water, pouring wine, lying on a bed, lying on the grass, leaning against a wall,
kneeling, crying, yawning, shouting, sneezing, praying, posing, posing on the red carpet, walking on the runway,
celebrating, playing cards, playing chess, playing video games, watching television, listening to music, wearing
headphones, shopping, trying on shoes, getting a haircut, putting on makeup, ironing clothes, vacuuming the floor,
hammering a nail, sawing wood, fixing a car, examining a patient, looking through a microscope, wearing a mask,
wearing a costume
""")
ANIMALS = phrases("""
dog, cat, puppy, kitten, horse, foal, cow, calf, bull, sheep, lamb, goat, pig, piglet, donkey, chicken, rooster, hen,
chick, duck, duckling, goose, swan, turkey, rabbit, bunny, hamster, guinea pig, mouse, rat, squirrel, chipmunk,
hedgehog, fox, wolf, bear, polar bear, panda, koala, kangaroo, lion, lioness, tiger, leopard, cheetah, elephant,
giraffe, zebra, rhinoceros, hippopotamus, monkey, gorilla, chimpanzee, orangutan, camel, llama, alpaca, deer, stag,
fawn, moose, elk, reindeer, antelope, gazelle, buffalo, bison, wild boar, raccoon, skunk, otter, beaver, badger, seal,
sea lion, walrus, dolphin, whale, shark, fish, goldfish, clownfish, octopus, squid, crab, lobster, shrimp, starfish,
jellyfish, turtle, tortoise, frog, toad, lizard, gecko, iguana, chameleon, snake, crocodile, alligator, bird, eagle,
hawk, falcon, owl, crow, raven, pigeon, dove, seagull, pelican, penguin, flamingo, stork, heron, crane, peacock,
ostrich, parrot, cockatoo, sparrow, robin, hummingbird, woodpecker, kingfisher, butterfly, moth, bee, bumblebee, wasp,
dragonfly, ladybug, beetle, ant, spider, scorpion, grasshopper, snail, caterpillar, worm, bat, sloth, lemur, meerkat,
dinosaur, dragon, unicorn, bulldog, labrador, german shepherd, poodle, tabby cat, black cat
""")
ANIMAL_DEEDS = phrases("""
sitting, standing, sleeping, running, walking, jumping, eating, drinking water, looking at the camera, lying down,
playing with a ball, swimming, flying, climbing, hiding, perched on a branch, grazing, carrying a stick, looking out
of a window, catching a frisbee, yawning, wearing a collar, in a cage, with its mouth open, with its babies, sniffing
a flower, hunting, crossing the road, in the zoo, on a leash
""")
FOOD = phrases("""
apple, banana, orange, lemon, lime, grapefruit, pear, peach, plum, cherry, strawberry, raspberry, blueberry,
blackberry, grapes, watermelon, melon, pineapple, mango, papaya, kiwi fruit, coconut, pomegranate, fig, avocado,
olive, tomato, potato, carrot, onion, garlic, pepper, chili pepper, cucumber, lettuce, cabbage, broccoli, cauliflower,
spinach, celery, asparagus, zucchini, eggplant, pumpkin, corn, peas, beans, mushroom, radish, beet, ginger, basil
leaves, rosemary, bread, loaf of bread, baguette, toast, sandwich, burger, hamburger, hot dog, pizza, slice of pizza,
taco, burrito, pasta, spaghetti, lasagna, noodles, ramen, rice, sushi, soup, stew, salad, steak, roast chicken,
chicken wings, bacon, sausage, ham, meatballs, fried egg, boiled egg, omelette, pancakes, waffles, croissant, muffin,
cupcake, cake, birthday cake, wedding cake, chocolate cake, cheesecake, pie, apple pie, tart, cookie, biscuit,
brownie, donut, candy, lollipop, chocolate bar, ice cream, ice cream cone, popsicle, yogurt, cheese, butter, milk,
cream, honey, jam, sugar, salt, flour, cereal, oatmeal, nuts, almonds, walnuts, peanuts, coffee, cappuccino, tea,
orange juice, lemonade, smoothie, milkshake, beer, red wine, champagne, whisky, cocktail, french fries, popcorn,
potato chips, pretzel, fish fillet, salmon, oysters, curry, kebab, dumplings, spices, cinnamon sticks, olive oil,
ketchup
""")
CLOTHING = phrases("""
shirt, t-shirt, blouse, sweater, hoodie, sweatshirt, cardigan, jacket, leather jacket, denim jacket, coat, raincoat,
trench coat, fur coat, vest, suit, tuxedo, dress, evening gown, wedding dress, skirt, mini skirt, jeans, trousers,
shorts, leggings, pyjamas, bathrobe, swimsuit, bikini, underwear, bra, socks, stockings, tights, shoes, sneakers,
running shoes, boots, rubber boots, sandals, flip flops, high heels, slippers, hat, baseball cap, beanie, straw hat,
helmet, hood, scarf, shawl, gloves, mittens, tie, bow tie, belt, buckle, apron, uniform, kimono, sari, jersey,
costume, mask, veil, sunglasses, eyeglasses, watch, wristwatch, necklace, pendant, bracelet, ring, diamond ring,
earrings, brooch, crown, tiara, handbag, purse, wallet, backpack, suitcase, briefcase, tote bag, umbrella, zipper,
button, pocket, polo shirt, jumper, tank top, parka, ankle boots, clutch bag, cufflinks, hair clip, headband, wig
""")
HOUSEHOLD = phrases("""
chair, armchair, rocking chair, office chair, stool, bench, sofa, couch, table, coffee table, dining table, desk,
shelf, bookshelf, cupboard, cabinet, wardrobe, drawer, chest of drawers, bed, bunk bed, crib, cradle, mattress,
pillow, cushion, blanket, quilt, sheet, towel, curtain, blinds, rug, carpet, doormat, lamp, floor lamp, desk lamp,
chandelier, lantern, light bulb, candle, candlestick, mirror, picture frame, painting, poster, clock, alarm clock,
vase, flower pot, basket, box, cardboard box, crate, barrel, bucket, jar, bottle, glass bottle, water bottle, can,
mug, cup, teacup, teapot, kettle, coffee maker, glass, wine glass, plate, bowl, tray, jug, pitcher, pot, pan, frying
pan, saucepan, wok, oven, stove, microwave, toaster, blender, refrigerator, freezer, dishwasher, sink, faucet,
bathtub, shower, toilet, toilet paper, soap, shampoo bottle, toothbrush, toothpaste, comb, hairbrush, hair dryer,
razor, perfume bottle, lipstick, nail polish, knife, fork, spoon, ladle, spatula, whisk, rolling pin, cutting board,
corkscrew, bottle opener, grater, chopsticks, napkin, tablecloth, broom, mop, vacuum cleaner, dustpan, sponge, washing
machine, iron, ironing board, clothesline, hanger, fireplace, radiator, fan, air conditioner, heater, door, doorknob,
window, staircase, ladder, key, padlock, doorbell, mailbox, trash can, ashtray, bath mat, shower curtain, duvet,
headboard, night stand, chopping board, lunch box, thermos
""")
TOOLS = phrases("""
hammer, nail, screwdriver, screw, wrench, pliers, saw, chainsaw, axe, drill, chisel, tape measure, ruler, scissors,
shovel, spade, rake, hoe, pitchfork, wheelbarrow, lawn mower, hose, watering can, rope, chain, hook, wire, cable,
paintbrush, paint roller, toolbox, workbench, bolt, nut, gear, pulley, pump, pipe, valve, brick, bricks, plank, log,
firewood, matches, lighter, flashlight, torch, compass, binoculars, telescope, microscope, magnifying glass,
thermometer, stethoscope, syringe, pill, pills, bandage, crutches, wheelchair, scale, pen, pencil, crayon, marker,
eraser, notebook, envelope, letter, postcard, stamp, book, stack of books, newspaper, magazine, map, globe, calendar,
calculator, stapler, paper clip, folder, glue, tape, chalk, blackboard, whiteboard, easel, needle, thread, yarn, ball
of wool, sewing machine, coin, coins, banknote, banknotes, credit card, piggy bank, cash register, shopping cart,
shopping bag, gift box, ribbon, balloon, balloons, flag, banner, sign, road sign, stop sign, trophy, medal, badge,
bell, whistle, dart board, anvil, sword, dagger, shield, spear, bow and arrow, gun, pistol, rifle, cannon, bullet,
tank, bomb, rocket, cage, net, trap, test tube, flask, magnet, battery, plug, socket, switch, antenna, satellite,
robot, drone
""")
ELECTRONICS = phrases("""
computer, laptop, tablet, keyboard, mouse pad, monitor, printer, scanner, smartphone, mobile phone, telephone, phone
booth, television, remote control, radio, speaker, headphones, microphone, camera, video camera, tripod, projector,
game controller, router, hard drive, circuit board, solar panel, smart watch, earphones, charger, record player, vinyl
record, cassette tape, compact disc, typewriter
""")
VEHICLES = phrases("""
car, sports car, race car, vintage car, convertible, taxi, police car, ambulance, fire truck, truck, pickup truck,
van, minivan, bus, school bus, double decker bus, motorcycle, scooter, moped, bicycle, mountain bike, tricycle,
unicycle, skateboard, roller skates, train, steam train, subway train, tram, locomotive, airplane, jet, fighter jet,
helicopter, hot air balloon, glider, boat, sailboat, rowing boat, canoe, kayak, raft, yacht, ship, cargo ship, cruise
ship, ferry, submarine, tractor, combine harvester, bulldozer, excavator, crane truck, forklift, cement mixer,
trailer, caravan, camper van, carriage, horse cart, sled, snowmobile, stroller, wheel, tire, steering wheel,
headlight, engine, parachute
""")
NATURE = phrases("""
tree, oak tree, pine tree, palm tree, birch, willow, apple tree, christmas tree, bush, hedge, grass, moss, fern, ivy,
vine, leaf, autumn leaves, branch, twig, root, tree trunk, tree stump, bark, acorn, pine cone, seed, flower, rose, red
rose, tulip, daisy, sunflower, lily, orchid, lavender, poppy, daffodil, dandelion, cherry blossom, lotus, cactus,
bamboo, bouquet, wreath, wheat field, hay bale, mountain, snowy mountain, hill, valley, cliff, cave, canyon, volcano,
rock, stone, pebbles, boulder, sand dune, desert, beach, island, sea, ocean wave, lake, pond, river, stream,
waterfall, swamp, glacier, iceberg, ice, icicle, snow, snowflake, snowman, rain, raindrop, puddle, cloud, clouds,
storm, lightning, rainbow, fog, sky, sunrise, sunset, sun, moon, full moon, stars, milky way, planet, fire, flame,
smoke, campfire, nest, bird nest, egg, feather, shell, seashell, coral, coral reef, seaweed, spider web, honeycomb,
beehive, bone, skull, skeleton, fossil, crystal, gold, gold bar, silver coin, diamond, pearl, mud, soil, water drop,
bubbles, footprints, shadow
""")
BUILDINGS = phrases("""
house, wooden house, cottage, cabin, farmhouse, barn, mansion, castle, palace, church, cathedral, mosque, temple,
pagoda, synagogue, chapel, tower, bell tower, clock tower, lighthouse, windmill, wind turbine, skyscraper, office
building, apartment building, hotel, hospital, school, library, museum, theatre, stadium, train station, airport, gas
station, factory, warehouse, power plant, bridge, suspension bridge, dam, tunnel, road, highway, path, railway tracks,
crosswalk, traffic light, street lamp, fountain, statue, monument, pyramid, ruins, arch, column, gate, fence, wall,
brick wall, stone wall, roof, chimney, balcony, porch, terrace, patio, courtyard, garage, shed, greenhouse, tent,
treehouse, igloo, swimming pool, playground, swing, slide, seesaw, carousel, ferris wheel, roller coaster, park bench,
garden, vegetable garden, orchard, vineyard, farm, pier, harbor, dock, parking lot, market stall, shop window,
restaurant, bar, kitchen, bathroom, bedroom, living room, dining room, office, classroom, laboratory, gym, corridor,
hallway, elevator, escalator, skyline, village, town square, cemetery, gravestone, well, water tower, scaffolding
""")
SPORT_AND_PLAY = phrases("""
ball, football, soccer ball, basketball, baseball, tennis ball, golf ball, volleyball, bowling ball, tennis racket,
baseball bat, baseball glove, golf club, hockey stick, skis, snowboard, surfboard, ice skates, goal, basketball hoop,
dumbbell, barbell, treadmill, yoga mat, boxing gloves, frisbee, kite, teddy bear, doll, toy car, toy train, lego
bricks, building blocks, puzzle, rubber duck, stuffed animal, yo-yo, dice, playing cards, chess board, chess piece,
jump rope, trampoline, hammock, fishing rod, guitar, acoustic guitar, electric guitar, violin, cello, piano, grand
piano, drum, drum kit, trumpet, saxophone, trombone, flute, clarinet, harp, accordion, banjo, harmonica, tambourine,
sheet music, puppet, jack-o-lantern, easter eggs, christmas ornament, santa claus, angel figurine, gingerbread house,
fireworks, confetti, present, birthday candles, party hat, stocking, garden gnome, scarecrow, mannequin
""")
BODY = phrases("""
face, eye, blue eye, ear, nose, mouth, lips, teeth, tongue, beard, moustache, hair, curly hair, ponytail, braid, hand,
finger, fist, thumb, fingernails, arm, elbow, shoulder, leg, knee, foot, feet, toe, back, belly, neck, chin, tattoo,
tail, paw, wing, horns, beak, fur, hoof
""")
ADJECTIVES = phrases("""
red, blue, green, yellow, white, black, brown, pink, purple, orange, grey, golden, silver, wooden, metal, plastic,
glass, leather, small, big, large, tiny, old, new, young, beautiful, cute, colorful, bright, dark, empty, full, open,
broken, rusty, vintage, modern, dirty, wet, fresh, striped, spotted, round, square, tall, long, short, fluffy, shiny,
antique
""")
PLACES = phrases("""
on the beach, in the park, in the street, on the grass, in a field, in the forest, in the mountains, in the snow, in
the desert, by the lake, by the river, near the sea, in the ocean, on a boat, on a bridge, on a road, on the sidewalk,
in the city, in a garden, in the backyard, on a farm, in a barn, on a rock, on a tree branch, under a tree, in the
rain, at night, at sunset, at sunrise, in the sky, in the water, in a swimming pool, on a bench, at a bus stop, at the
train station, in an airport, in a parking lot, in a market, in a shop, in a restaurant, in a bar, in a kitchen, in a
bathroom, in a bedroom, in a living room, in an office, in a classroom, in a hospital, in a gym, on a stage, on a
football field, on a tennis court, at the zoo, in a museum, in a church, in front of a house, in front of a brick
wall, near a window, next to a fence, at a party, at a wedding, in autumn, in winter, in spring, in a car
""")
SPOTS = phrases("""
on a wooden table, on a table, on a plate, in a bowl, on a chair, on a sofa, on a bed, on the floor, on a shelf, on a
wall, in a box, in a basket, in a vase, on a wooden background, in a glass, on a white plate, in a hand, on a desk, on
a counter, in a window, on the ground, on the grass, in a kitchen, on a stone
""")
STOCK_FORMS = phrases("""
{x} isolated on white background, {x} on white background, {x} on a black background, vector illustration of {x},
illustration of {x}, cartoon {n}, drawing of {x}, hand drawn {n}, silhouette of {x}, portrait of {x}, close up of {x},
close-up of {x}, a photo of {x}, stock photo of {x}, a painting of {x}, black and white photo of {x}, {n} icon, {x}
seen from above, view of {x}, a pile of {n}, {n} seamless pattern, a row of {n}, three {n}, two {n} side by side, {x}
in close up, watercolor {n}, {n} logo on a white background, set of {n}
""")
THINGS = {
    "food": FOOD, "clothing": CLOTHING, "household": HOUSEHOLD, "tools": TOOLS, "electronics": ELECTRONICS,
    "vehicles": VEHICLES, "nature": NATURE, "buildings": BUILDINGS, "sport_and_play": SPORT_AND_PLAY, "body": BODY,
}  # fmt: skip
#: What cannot be drawn: the counterpart of the things, for the bank of single words.
ABSTRACT = phrases("""
idea, thought, concept, notion, theory, hypothesis, opinion, belief, faith, doubt, truth, lie, fact, knowledge,
wisdom, ignorance, intelligence, stupidity, logic, reason, reasoning, meaning, sense, nonsense, memory, imagination,
fantasy, dream, vision, insight, intuition, instinct, awareness, consciousness, attention, focus, curiosity, interest,
boredom, hope, despair, fear, anxiety, worry, stress, anger, rage, hatred, envy, jealousy, greed, pride, shame, guilt,
regret, remorse, grief, sorrow, sadness, misery, joy, happiness, pleasure, delight, bliss, ecstasy, love, affection,
passion, desire, lust, longing, nostalgia, sympathy, empathy, compassion, mercy, kindness, generosity, cruelty,
malice, evil, good, virtue, vice, sin, honour, honesty, dishonesty, integrity, loyalty, betrayal, trust, suspicion,
respect, contempt, courage, bravery, cowardice, patience, impatience, tolerance, prejudice, bias, justice, injustice,
fairness, equality, inequality, freedom, liberty, independence, dependence, slavery, oppression, power, authority,
control, influence, dominance, obedience, duty, obligation, responsibility, right, privilege, permission, prohibition,
law, rule, policy, regulation, principle, ethics, morality, ideology, philosophy, religion, atheism, spirituality,
soul, spirit, destiny, fate, luck, chance, risk, danger, safety, security, peace, war, conflict, agreement,
disagreement, compromise, treaty, democracy, dictatorship, monarchy, communism, capitalism, socialism, nationalism,
racism, feminism, politics, government, bureaucracy, economy, inflation, recession, poverty, wealth, debt, profit,
loss, price, cost, value, worth, quality, quantity, amount, number, average, percentage, probability, statistics,
mathematics, algebra, geometry, physics, science, history, culture, tradition, heritage, civilization, society,
community, identity, gender, race, class, status, reputation, fame, glory, success, failure, victory, defeat,
achievement, ambition, motivation, effort, progress, growth, decline, change, development, evolution, revolution,
reform, innovation, creativity, originality, style, genre, fashion, beauty, ugliness, elegance, charm, humour, irony,
sarcasm, wit, joke, metaphor, analogy, symbol, grammar, syntax, meaning of life, time, past, present day, future,
eternity, moment, duration, era, century, decade, deadline, delay, beginning, end, cause, effect, consequence, result,
purpose, goal, intention, plan, strategy, tactic, method, process, procedure, system, structure, function, role, task,
problem, solution, question, answer, reply, explanation, interpretation, analysis, synthesis, comparison, difference,
similarity, contrast, contradiction, paradox, dilemma, mystery, secret, clue, evidence, proof, certainty, uncertainty,
possibility, impossibility, necessity, reality, existence, absence, presence, essence, nature of things, character,
personality, attitude, mood, temper, habit, skill, talent, ability, capability, competence, experience, expertise,
training, education, discipline, career, employment, unemployment, promotion, retirement, management, leadership,
teamwork, cooperation, competition, marketing, advertising, branding, communication, information, data, news, rumour,
gossip, advice, suggestion, recommendation, criticism, praise, complaint, apology, excuse, promise, threat, warning,
request, demand, offer, refusal, acceptance, decision, choice, option, alternative, preference, priority, importance,
significance, relevance, emphasis, urgency, crisis, emergency, disaster, tragedy, comedy, drama, suspense, surprise,
shock, relief, comfort, discomfort, pain, suffering, illness, health, wellness, immunity, fitness, strength, weakness,
energy, momentum, force, speed, gravity, density, frequency, intensity, scale, proportion, symmetry, balance, harmony,
chaos, disorder, order, complexity, simplicity, clarity, ambiguity, precision, accuracy, error, mistake, fault, blame,
revenge, forgiveness, redemption, salvation, sacrifice, devotion, gratitude, humility, arrogance, vanity, modesty,
dignity, privacy, solitude, loneliness, friendship, marriage, divorce, romance, intimacy, kinship, hospitality,
etiquette, politeness, rudeness, enthusiasm, apathy, optimism, pessimism, cynicism, idealism, realism, pragmatism,
stability, flexibility, efficiency, productivity, sustainability, compliance, liability, eligibility, ownership,
inheritance, legacy, warranty, guarantee, discount, bargain, subscription, availability, convenience, satisfaction,
expectation, assumption, perspective, viewpoint, context, background story, theme, topic, subject matter, agenda,
scope, extent, degree, level, rate, trend
""")
#: Texts of the web beside pictures that say nothing to draw: {a} an abstract word, {n} a thing, {d} a number.
UNDRAWABLE_FORMS = phrases("""
the {a} of {a}, how to improve your {a}, {d} ways to find {a}, why {a} matters, the importance of {a}, {a} and {a},
what is {a}?, a great method of {a}, your guide to {a}, {a} in the modern world, learn more about {a}, the truth about
{a}, best {n} deals, buy {n} online, {n} for sale, free shipping on orders over ${d}, cheap {n} price {d}, {n} reviews
{d}, how to choose a {n}, {d} tips for your {n}, download free {n} template, {n} model {d}-{d}, episode {d}: {a},
season {d}, chapter {d}, terms and conditions, privacy policy, contact us, about us, click to enlarge, image not
available, in {a} we trust, my thoughts on {a}, {a} is everything, official trailer, lyrics and translation, job
opportunities in {a}, annual report {d}, a theory of {a}, all about {a}, {n} wholesale supplier, questions about {n},
the history of the {n}
""")
